"""Batches of several seeds in blocks of steps, drawn ahead in threads while the device trains on the block before."""

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from archsearch.studies.tasks.task import IGNORED, Task
from archsearch.studies.training.labels import labelled, rounded

STEPS = 64
"""Steps of a block."""
FIRST_STEPS = 8
"""Steps of the first block, for which training waits."""
AHEAD = 2
"""Blocks that are drawn or being drawn beside the one in use."""
KEPT = 128
"""Blocks of one seed that a process keeps, for the next group that trains on the same data."""


@dataclass(frozen=True, slots=True)
class Block:
    """Batches of S seeds and n steps, int32. tokens: [S, n, B, T]. places: [S, n, M], the labelled positions of the
    flat batch [B T], filled up with 0. answers: [S, n, M], what to predict there, `IGNORED` where filled up."""

    tokens: Tensor
    places: Tensor
    answers: Tensor

    @property
    def steps(self) -> int:
        """n."""
        return self.tokens.shape[1]


def blocks(task: Task, seeds: Sequence[int], sequences: int, first: int, last: int, threads: int) -> Iterator[Block]:
    """The batches of steps first .. last - 1 for `seeds` of the data, which are all different, on the CPU."""
    with ThreadPoolExecutor(max_workers=threads) as pool:

        def begin(start: int) -> list[Future[Block]]:
            stop = min(start + STEPS, last) if start > first else min(start + FIRST_STEPS, last)
            return [pool.submit(_drawn, task, seed, sequences, start, stop) for seed in seeds]

        waiting = deque[list[Future[Block]]]()
        starts = deque(_starts(first, last))
        while waiting or starts:
            while starts and len(waiting) <= AHEAD:
                waiting.append(begin(starts.popleft()))
            yield _joined([future.result() for future in waiting.popleft()])


def _starts(first: int, last: int) -> list[int]:
    return [first, *range(first + FIRST_STEPS, last, STEPS)] if first < last else []


@functools.lru_cache(maxsize=KEPT)
def _drawn(task: Task, seed: int, sequences: int, start: int, stop: int) -> Block:
    """The block of one seed."""
    batches = [task.train_batch(seed, step, sequences) for step in range(start, stop)]
    most = max(rounded(int((batch.targets != IGNORED).sum())) for batch in batches)
    found = [labelled(batch.targets, most) for batch in batches]
    places, answers = (torch.stack(each).int()[None] for each in zip(*found, strict=True))
    return Block(torch.stack([batch.tokens.int() for batch in batches])[None], places, answers)


def _joined(parts: Sequence[Block]) -> Block:
    """The blocks of several seeds as one, filled up to the most labels."""
    most = max(part.places.shape[2] for part in parts)
    return Block(
        torch.cat([part.tokens for part in parts]),
        torch.cat([_filled(part.places, most, 0) for part in parts]),
        torch.cat([_filled(part.answers, most, IGNORED) for part in parts]),
    )


def _filled(labels: Tensor, most: int, value: int) -> Tensor:
    return torch.nn.functional.pad(labels, (0, most - labels.shape[2]), value=value)
