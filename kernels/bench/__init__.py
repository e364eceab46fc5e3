"""Timings of a rule on the machine at hand: values first, then forward, backward and step, beside installed peers."""
