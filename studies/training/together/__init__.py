"""Trials of one structure trained as one batched model: replicas, each with its own seed, rates and end.

`structure` says which trials those are. `rows` lays parameters out as rows of a matrix, `folding` batches the model,
`feed` the data, `optimiser` the steps; a `lane` is one replica, `stack` trains several, `lockstep` evaluates them,
`group` takes them from their checkpoints to their ends, and `times` says where the seconds went.
"""
