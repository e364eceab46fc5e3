"""A trial's evaluations for TensorBoard: `tensorboard --logdir STUDY/trials`."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from archsearch.errors import StudyError

FOLDER = "tensorboard"
"""In a trial's directory."""


def check_tensorboard() -> None:
    """Whether TensorBoard's writer is installed. StudyError."""
    if importlib.util.find_spec("tensorboard") is None:
        raise StudyError("tensorboard: true needs TensorBoard; install it with pip install 'archsearch[tensorboard]'")


class Board:
    """Writes the evaluations of one attempt; those of earlier attempts beyond its start are hidden."""

    def __init__(self, trial: Path, start: int) -> None:
        """start: the tokens that the attempt goes on from."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(trial / FOLDER), purge_step=start + 1)

    def add(self, tokens: int, values: Mapping[str, float], seconds: float) -> None:
        """Write an evaluation; it can be read when this returns."""
        for name, value in {**values, "training_seconds": seconds}.items():
            self._writer.add_scalar(name, value, tokens)  # pyright: ignore[reportUnknownMemberType]
        self._writer.flush()
