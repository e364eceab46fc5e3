"""Trials of one structure trained as one batched model: replicas, each with its own seed, rates and end."""
