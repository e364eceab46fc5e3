"""Points become trials, trials evidence: tasks, training, the study engine and its reports."""
