"""What a study asks: the configuration that a user writes, and the plan that is fixed when it begins.

`points` are what is proposed, `entrants` what is trained on fresh seeds, `rates` the grid of learning rates; `config`
is the YAML file and `plan` what study.json holds of it.
"""
