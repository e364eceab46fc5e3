"""What every task is: batches as a pure function of seed and step, and an evaluation in named values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from archsearch.studies.tasks.direction import Direction

IGNORED = -100
"""The target of a position that is neither trained nor scored."""

EVALUATION_TOKENS = 16384
"""Tokens of one forward pass of an evaluation: bounds the memory of its logits."""

Forward = Callable[[Tensor], Tensor]
"""Tokens [B, T] int64 on the CPU to logits [B, T, vocabulary], on any device, without gradients."""


class Part(Enum):
    """Which held-out data an evaluation reads: VALIDATION while searching, TEST once for what is reported."""

    VALIDATION = "validation"
    TEST = "test"


class Batch(NamedTuple):
    """tokens: [B, T] int64. targets: [B, T] int64, what to predict at each position, `IGNORED` where nothing."""

    tokens: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    """The value of an evaluation that a task is about, and which way it is better."""

    name: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class Scored:
    """What one held-out document, the unit of a bootstrap, says of a model: the objective's value over all of them is
    the sum of their `bits` over the sum of their `size`.

    Of a text size counts bytes and bits those that the model needed; of a task of sequences a sequence has size 1 and
    `bits` is its score.
    """

    name: str
    size: int
    bits: float


@runtime_checkable
class Documented(Protocol):
    """A task whose held-out data fall into documents that can be resampled."""

    def score_documents(self, forward: Forward, part: Part = Part.VALIDATION) -> list[Scored]:
        """Every document, in an order that is always the same."""
        ...


class Task(Protocol):
    """A deterministic source of batches. Nothing in it changes in use, so that a loader's position is the step
    number."""

    @property
    def name(self) -> str:
        """The key of the task in a configuration."""
        ...

    @property
    def vocabulary(self) -> int:
        """Tokens are 0 .. vocabulary - 1."""
        ...

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        ...

    @property
    def objective(self) -> Objective:
        """The value to judge a model by."""
        ...

    @property
    def description(self) -> str:
        """In one line, what is drawn and how it is scored, for reports."""
        ...

    @property
    def data_hash(self) -> str:
        """SHA-256 of the options and files that determine every batch."""
        ...

    def train_batch(self, seed: int, step: int, sequences: int) -> Batch:
        """The batch of a step: the same for the same arguments, on every machine."""
        ...

    def evaluate(self, forward: Forward, part: Part = Part.VALIDATION) -> dict[str, float]:
        """Named values over the fixed held-out data, the objective's among them."""
        ...

    def baselines(self, part: Part = Part.VALIDATION) -> Mapping[str, float]:
        """The objective's value of trivial predictors, by name: what a model must beat to have learned anything."""
        ...


class Stream(Enum):
    """Independent sources of random numbers: training never meets the sequences of an evaluation."""

    TRAINING = 0
    VALIDATION = 1
    TEST = 2

    @staticmethod
    def of(part: Part) -> "Stream":
        """The stream of held-out data."""
        return Stream.VALIDATION if part is Part.VALIDATION else Stream.TEST


def generator(stream: Stream, *position: int) -> np.random.Generator:
    """A generator that depends on its arguments alone; every position >= 0."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((stream.value, *position))))
