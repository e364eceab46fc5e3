"""A trial's training: configuration, optimiser, schedule, loop, checkpoints; one process, CPU or one GPU."""
