"""Points become trials, trials evidence.

Lowest first: `files`, `tasks`, `training`, `workers` (what trains) and `search` (what to try next), `design` (what is
asked), `engine` (the driver) and `evidence` (what the files say), `report`; on top `export`, `probe`, `reading` and
`commands`.
"""
