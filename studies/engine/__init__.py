"""A study runs, or one trial alone.

`driver` is the loop of the one process that decides, `signals` ends it well, `session` takes a study from its lock to
its end, `run` makes all of that from a configuration, with what `importing` finds in an older study; `single` trains
one trial. `measured` and `checking` say before a run what it would do and take.
"""
