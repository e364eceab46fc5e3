"""What to try next, and how far: Optuna's ask and tell, and the rungs at which a trial goes on or stops.

`fronts` orders points with several objectives, and `rungs` decides by that order. `samplers` propose, `storage` is
where Optuna keeps its records, `telling` makes of a trial's end what Optuna is told, `artifacts` keeps the files beside
it, `proposals` asks and tells.
"""
