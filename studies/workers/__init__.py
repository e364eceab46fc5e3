"""What trains the trials that a driver starts; the only folder that imports Ray.

`clerk` keeps a trial's directory behind the fence and `body` trains its model; `crew` carries several trials of one
structure, `ranks` one trial in several processes. `executor` is what the driver sees: `local_executor` (processes of
this machine), `ray_executor` (one actor a trial or crew), `ray_group` (several a trial). `ray_cluster` is where the
actors run, and `ray_head` what answers there.
"""
