"""A study runs, or one trial alone.

`driver` is the loop of the one process that decides. Its parts: `proposing` writes what is tried next, and `tried`
keeps count of it; `attempts` follows what runs, and `losses` says what comes after an attempt that was lost; `deciding`
lets trials go on at the rungs, `endings` ends them and tells Optuna; `limits` says how long to wait. `signals` ends it
well.

`session` takes a study from its lock to its end, `run` makes all of that from a configuration, with what `importing`
finds in an older study; `single` trains one trial. `measured` and `checking` say before a run what it would do and
take.
"""
