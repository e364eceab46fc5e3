"""A trial's training, in one process or several, on a CPU or GPUs.

`configuration` reads YAML, `config` is what one trial needs. `run` trains one model on one task, out of `optimiser`,
`schedule`, `randomness` and `graph`; `trial` trains all of a trial's models, with `checkpoint` and `parallel`;
`language` makes trials of language models. `timing` measures steps on a device that `card` shares out, `progress`
shows them; `together` trains trials of one structure as one model; `ladder` is a row of `archsearch check`, `validity`
holds a rule against the others before it is trained.
"""
