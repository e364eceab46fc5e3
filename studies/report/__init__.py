"""Evidence as people read it: the report of a study as one HTML page with its tables, a check, a status that moves.

`study_page` puts the page together from `verdict_page`, `findings_page`, `rate_page`, `matched_page` (equal budgets),
`speed_page`, `failures_page` and the drawings of `figures`; `caveats` says what they rest on, here and in a terminal,
to which `check_page` and `live` write.
"""
