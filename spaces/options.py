"""How a model is trained and what it may cost: frozen data, read from YAML or written in a space.

Every field may hold a hole while it stands in a `Space`; values are checked as soon as they are numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from archsearch.errors import ConfigError
from archsearch.holes import is_hole
from archsearch.typed_data import check_fields

LARGEST_BATCH = 1 << 31
LARGEST_BUDGET = 10**15
"""Beyond them there is a slip of the pen, and no machine."""


class Schedule(Enum):
    """The course of the learning rate after the warm-up.

    WSD: constant, then linear to the floor over the last `Training.decay` of the budget, so that a rung before it is a
    usable short budget. COSINE: half a cosine down to the floor at the end of the budget.
    """

    WSD = "wsd"
    COSINE = "cosine"


class Precision(Enum):
    """The type of the matrix products: AUTO is bfloat16 autocast on CUDA and float32 on the CPU."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class Training:
    """Optimiser and schedule of one model.

    learning_rate: AdamW's peak step size, > 0. weight_decay: >= 0; norms, biases, embeddings and gate constants are
    spared. beta1, beta2: in [0, 1). epsilon: > 0. batch_tokens: tokens of one step, >= 1; a task takes
    batch_tokens // length sequences, at least one. warmup, decay: shares of the budget, in [0, 1] and together <= 1.
    floor: the last learning rate as a share of the peak, in [0, 1]. clip: largest gradient norm; 0 is none.
    """

    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    batch_tokens: int = 8192
    schedule: Schedule = Schedule.WSD
    warmup: float = 0.02
    decay: float = 0.2
    floor: float = 0.0
    clip: float = 1.0
    precision: Precision = Precision.AUTO

    def __post_init__(self) -> None:
        """Refuse other types and numbers out of range; holes pass until they are filled."""
        check_fields(self, "training", is_hole)
        _need("training.learning_rate", self.learning_rate, "> 0", lambda x: x > 0)
        _need("training.weight_decay", self.weight_decay, ">= 0", lambda x: x >= 0)
        _need("training.epsilon", self.epsilon, "> 0", lambda x: x > 0)
        _need("training.clip", self.clip, ">= 0 (0: no clipping)", lambda x: x >= 0)
        _need("training.batch_tokens", self.batch_tokens, ">= 1", lambda x: x >= 1)
        _need("training.batch_tokens", self.batch_tokens, f"<= {LARGEST_BATCH:,}", lambda x: x <= LARGEST_BATCH)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            _need(f"training.{name}", value, "in [0, 1)", lambda x: 0 <= x < 1)
        for name, value in (("warmup", self.warmup), ("decay", self.decay), ("floor", self.floor)):
            _need(f"training.{name}", value, "in [0, 1]", lambda x: 0 <= x <= 1)
        if _is_number(self.warmup) and _is_number(self.decay):
            _need("training.warmup + training.decay", self.warmup + self.decay, "<= 1", lambda x: x <= 1)

    def without_decay(self) -> "Training":
        """Itself with the share of the last decay as by default: all of a schedule that decays all the time."""
        return replace(self, decay=Training.__dataclass_fields__["decay"].default)


QUANTITIES = ("state_bytes", "parameters", "flops_per_token")
"""What sizes are solved for, in this order."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What every point of a space costs; None leaves a quantity free.

    parameters: trainable numbers. flops_per_token: forward pass, at the task's length. state_bytes: float32 state and
    convolution cache of one sequence, all layers. Each is a number, or the name of a rule whose model, in the sizes
    that the space writes, says the number; the sizes of every point are then solved for it. tokens: training tokens of
    each task that names none of its own. tolerance: the relative error allowed when sizes are solved, in (0, 1).
    """

    parameters: int | str | None = None
    flops_per_token: int | str | None = None
    state_bytes: int | str | None = None
    tokens: int | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        """Refuse other types and numbers out of range; holes pass until they are filled."""
        check_fields(self, "budget", is_hole)
        for name in ("parameters", "flops_per_token", "state_bytes", "tokens"):
            _need(f"budget.{name}", getattr(self, name), ">= 1", lambda x: x >= 1)
            _need(f"budget.{name}", getattr(self, name), f"<= {LARGEST_BUDGET:,}", lambda x: x <= LARGEST_BUDGET)
        _need("budget.tolerance", self.tolerance, "in (0, 1)", lambda x: 0 < x < 1)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _need(key: str, value: object, condition: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, (int, float)) and not (holds(value) and math.isfinite(value)):
        raise ConfigError(f"{key} must be {condition}; got {value}")
