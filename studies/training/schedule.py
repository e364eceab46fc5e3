"""The learning rate as a pure function of the step, so that a resumed run needs no memory of it."""

import math

from archsearch.spaces.options import Schedule, Training


def learning_rate(training: Training, step: int, steps: int) -> float:
    """The learning rate of step `step`, 0-based, of a budget of `steps`."""
    return training.learning_rate * _share(training, step, steps)


def _share(training: Training, step: int, steps: int) -> float:
    warmup = round(training.warmup * steps)
    if step < warmup:
        return (step + 1) / warmup
    start = steps - round(training.decay * steps) if training.schedule is Schedule.WSD else warmup
    if step < start:
        return 1.0
    passed = (step - start) / max(1, steps - start)
    left = 1 - passed if training.schedule is Schedule.WSD else 0.5 * (1 + math.cos(math.pi * passed))
    return training.floor + (1 - training.floor) * left
