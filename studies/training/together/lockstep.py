"""Evaluations of several models at once: they ask for logits of the same tokens, which one pass of all models gives."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from archsearch.studies.tasks.task import Forward

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Ended(Generic[T]):
    """What an evaluation found, or what it raised."""

    found: T | Exception


class _Asking(threading.Thread, Generic[T]):
    """One model's evaluation, which asks for logits and waits for them."""

    def __init__(self, evaluate: Callable[[Forward], T]) -> None:
        super().__init__(daemon=True)
        self._evaluate = evaluate
        self.said: queue.Queue[Tensor | _Ended[T]] = queue.Queue()
        self.told: queue.Queue[Tensor | None] = queue.Queue()

    def run(self) -> None:
        """Tokens, one after another, then what was found or raised."""
        try:
            with torch.no_grad():
                self.said.put(_Ended(self._evaluate(self._forward)))
        except Exception as error:  # raised where the models are
            self.said.put(_Ended(error))

    def _forward(self, tokens: Tensor) -> Tensor:
        self.said.put(tokens)
        logits = self.told.get()
        if logits is None:
            raise RuntimeError("the evaluation was given up")
        return logits


def evaluate_in_lockstep(
    evaluate: Callable[[Forward], T], forward: Callable[[Tensor], Tensor], models: int
) -> list[T | Exception]:
    """What `evaluate` finds of each of `models` models, or what it raised.

    forward: tokens [B, T] on the CPU to logits [models, B, T, vocabulary], called in this thread. Evaluations that ask
    for other tokens than the first one that is still at it are answered by passes of their own.
    """
    threads = [_Asking(evaluate) for _ in range(models)]
    for thread in threads:
        thread.start()
    ended: dict[int, T | Exception] = {}
    try:
        while len(ended) < models:
            _answer_once(threads, ended, forward)
    finally:
        for thread in threads:
            thread.told.put(None)
    for thread in threads:
        thread.join()
    return [ended[i] for i in range(models)]


def _answer_once(
    threads: list[_Asking[T]], ended: dict[int, T | Exception], forward: Callable[[Tensor], Tensor]
) -> None:
    """Hear every evaluation that goes on, and answer those that ask."""
    asked: dict[int, Tensor] = {}
    for i, thread in enumerate(threads):
        if i in ended:
            continue
        said = thread.said.get()
        if isinstance(said, Tensor):
            asked[i] = said
        else:
            ended[i] = said.found
    while asked:
        tokens = next(iter(asked.values()))
        alike = [i for i, other in asked.items() if other is tokens or torch.equal(other, tokens)]
        logits = forward(tokens)
        for i in alike:
            threads[i].told.put(logits[i])
            del asked[i]
