"""Trials an hour of a grid: as a study, and one after another in a plain loop; see `__main__`."""
