"""What the files of a study say, and what may be concluded from them; reads files only, beside a driver or without.

`rows` are its trials in order, each structure at its `best_rate`, under the names that `naming` gives, and `status` is
how far it came; `findings` is what a search teaches. `student` and `comparison` judge paired seeds, `conclusions` and
`pareto` what a study of entrants shows; `aa` and `pool` say how far that can be trusted, `finals` asks for more seeds,
and `winner` is the trial that a study stands for. `wording` names values for people.
"""
