"""Batched models that a process keeps when their trials are over: the next trials of the structure find everything
compiled, and their steps captured.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, cast

import torch

from archsearch.mixers.models.language_model import LanguageModel
from archsearch.studies.training.together.folding import kernels_of
from archsearch.studies.training.together.stack import Course, Stack

MOST = 4
"""Kept at a time; the memory of each, its graph's among it, is that of training."""
ROOM = 0.7
"""Of a GPU's memory that this process may have, what kept ones leave to models of another kind that are built."""


@dataclass(frozen=True, slots=True)
class Key:
    """What batched models must agree in to stand in for each other. model, kernels: in words."""

    model: str
    kernels: str
    data: str
    rows: int
    sequences: int
    half: bool
    device: torch.device

    @staticmethod
    def of(model: LanguageModel, course: Course, rows: int, device: torch.device) -> "Key":
        """Of a folded model on a course."""
        text = f"{model.rule} {model.model} {model.layer} {model.vocabulary}"
        return Key(text, kernels_of(model), course.task.data_hash, rows, course.sequences, course.half, device)


class Kept:
    """Stacks by what they are, the newest ones."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._stacks: OrderedDict[Key, Stack] = OrderedDict()

    def put(self, key: Key, stack: Stack) -> None:
        """Keep a stack that nobody uses any more; an older one may go."""
        self._stacks[key] = stack
        self._stacks.move_to_end(key)
        while len(self._stacks) > self._most:
            self._let_oldest_go()

    def take(self, key: Key) -> Stack | None:
        """The stack of a key, which is then no longer kept; None if there is none."""
        return self._stacks.pop(key, None)

    def drop(self) -> bool:
        """Let all go; whether there were any."""
        found = bool(self._stacks)
        while self._stacks:
            self._let_oldest_go()
        return found

    def make_room(self, device: torch.device) -> None:
        """Let the oldest go until enough of the device's memory is free for models that are to be built."""
        if device.type != "cuda" or not self._stacks:
            return
        torch.cuda.empty_cache()
        while self._stacks and _held_share(device) > 1 - ROOM:
            self._let_oldest_go()
            torch.cuda.empty_cache()

    def _let_oldest_go(self) -> None:
        self._stacks.popitem(last=False)[1].close()


def _held_share(device: torch.device) -> float:
    """Of the memory that this process may have, what its tensors and graphs hold."""
    whole = int(cast(Any, torch.cuda.get_device_properties(device)).total_memory)
    return torch.cuda.memory_reserved(device) / (whole * torch.cuda.get_per_process_memory_fraction(device))


KEPT = Kept()
"""Of this process."""
