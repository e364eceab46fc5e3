"""Evaluations of several models at once: they ask for logits of the same tokens, which one pass of all models gives."""

import queue
import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from archsearch.studies.tasks.task import Forward

Evaluation = Callable[[Forward], dict[str, float]]
"""`Task.evaluate` of some part."""
Values = Mapping[str, float] | Exception


class _Asking(threading.Thread):
    """One model's evaluation, which asks for logits and waits for them."""

    def __init__(self, evaluate: Evaluation) -> None:
        super().__init__(daemon=True)
        self._evaluate = evaluate
        self.said: queue.Queue[Tensor | Values] = queue.Queue()
        self.told: queue.Queue[Tensor | None] = queue.Queue()

    def run(self) -> None:
        """Tokens, one after another, then the values or what was raised."""
        try:
            with torch.no_grad():
                self.said.put(self._evaluate(self._forward))
        except Exception as error:  # raised where the models are
            self.said.put(error)

    def _forward(self, tokens: Tensor) -> Tensor:
        self.said.put(tokens)
        logits = self.told.get()
        if logits is None:
            raise RuntimeError("the evaluation was given up")
        return logits


def evaluate_in_lockstep(evaluate: Evaluation, forward: Callable[[Tensor], Tensor], models: int) -> list[Values]:
    """The values of each of `models` models, or what its evaluation raised.

    forward: tokens [B, T] on the CPU to logits [models, B, T, vocabulary], called in this thread. Evaluations that ask
    for other tokens than the first one that is still at it are answered by passes of their own.
    """
    threads = [_Asking(evaluate) for _ in range(models)]
    for thread in threads:
        thread.start()
    ended: dict[int, Values] = {}
    try:
        while len(ended) < models:
            _answer_once(threads, ended, forward)
    finally:
        for thread in threads:
            thread.told.put(None)
    for thread in threads:
        thread.join()
    return [ended[i] for i in range(models)]


def _answer_once(threads: list[_Asking], ended: dict[int, Values], forward: Callable[[Tensor], Tensor]) -> None:
    """Hear every evaluation that goes on, and answer those that ask."""
    asked: dict[int, Tensor] = {}
    for i, thread in enumerate(threads):
        if i in ended:
            continue
        said = thread.said.get()
        if isinstance(said, Tensor):
            asked[i] = said
        else:
            ended[i] = said
    while asked:
        tokens = next(iter(asked.values()))
        alike = [i for i, other in asked.items() if other is tokens or torch.equal(other, tokens)]
        logits = forward(tokens)
        for i in alike:
            threads[i].told.put(logits[i])
            del asked[i]
