"""What a model is asked to do: deterministic batches and an evaluation in named values."""
