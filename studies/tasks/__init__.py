"""What a model is asked to do: deterministic batches and an evaluation in named values.

`task` says what every task is, `direction` which way a value is better; `mqar` and `overwrite` ask for recall (their
sequences come from `pairs`), `text` for bytes of real files (`sources`, `corpus`; `ngram` is what it must beat).
`registry` names them.
"""
