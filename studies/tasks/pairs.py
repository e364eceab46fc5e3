"""Sequences of key-value pairs, drawn for many sequences at once: distinct tokens, query places, filler.

Vocabulary: 0 is empty, 1 .. vocabulary // 2 - 1 are keys, vocabulary // 2 .. vocabulary - 1 are values.
"""

import hashlib
import json

import numpy as np
import torch
from numpy.typing import NDArray

from archsearch.errors import TaskError
from archsearch.studies.tasks.task import IGNORED, Batch, Scored

Tokens = NDArray[np.int64]


def draw_distinct(random: np.random.Generator, sequences: int, low: int, high: int, count: int) -> Tokens:
    """[high - low, sequences]: first `count` distinct tokens of low .. high - 1, uniform, then the others."""
    deck = np.empty((high - low, sequences), dtype=np.int64)
    deck[:] = np.arange(low, high, dtype=np.int64)[:, None]
    columns = np.arange(sequences)
    for row in range(count):
        other = random.integers(row, high - low, size=sequences)
        picked = deck[other, columns]
        deck[other, columns] = deck[row]
        deck[row] = picked
    return deck


def draw_places(random: np.random.Generator, sequences: int, count: int, slots: int, power: float) -> Tokens:
    """[sequences, count]: distinct slots of 0 .. slots - 1, slot i drawn with weight (i + 1) ** (power - 1).

    Exponential keys divided by the weights, smallest first: successive draws without replacement.
    """
    weights = np.arange(1, slots + 1, dtype=np.float64) ** (power - 1)
    keys = random.standard_exponential((sequences, slots)) / weights
    return np.argsort(keys, axis=1)[:, :count]


def lay_out(context: Tokens, queries: Tokens, answers: Tokens, places: Tokens, length: int) -> tuple[Tokens, Tokens]:
    """Sequences and their targets: the context, then every query at its place, two positions apart at least.

    context: [B, C]. queries, answers, places: [B, N]; a query of place p stands at C + 2 p. Returns tokens [B, length],
    0 where nothing stands, and targets [B, length], the answer at each query.
    """
    sequences, width = context.shape
    tokens = np.zeros((sequences, length), dtype=np.int64)
    targets = np.full((sequences, length), IGNORED, dtype=np.int64)
    tokens[:, :width] = context
    at = width + 2 * places
    np.put_along_axis(tokens, at, queries, axis=1)
    np.put_along_axis(targets, at, answers, axis=1)
    return tokens, targets


def fill(random: np.random.Generator, tokens: Tokens, unused: Tokens) -> None:
    """Put keys that the sequence does not use wherever 0 stands, in place; unused: [U, B].

    Only keys: a value after a query would read as a new pair and contradict the answer.
    """
    rows, columns = np.nonzero(tokens == 0)
    tokens[rows, columns] = unused[random.integers(0, len(unused), size=len(rows)), rows]


def interleave(keys: Tokens, values: Tokens) -> Tokens:
    """[B, N] and [B, N] to [B, 2 N]: key, value, key, value, ..."""
    return np.stack((keys, values), axis=2).reshape(len(keys), -1)


def batch_of(tokens: Tokens, targets: Tokens) -> Batch:
    """The arrays as tensors, without a copy."""
    return Batch(torch.as_tensor(tokens), torch.as_tensor(targets))


def per_sequence(scores: torch.Tensor, labelled: torch.Tensor) -> torch.Tensor:
    """The mean over labelled positions of each sequence that has one. Both [B, T]; at most [B]."""
    counts = labelled.sum(1)
    return (scores * labelled).sum(1)[counts > 0] / counts[counts > 0]


def per_sequence_mean(scores: torch.Tensor, labelled: torch.Tensor) -> float:
    """Mean over sequences of the mean over labelled positions; sequences without one do not count. Both [B, T]."""
    means = per_sequence(scores, labelled)
    return float(means.mean()) if len(means) else float("nan")


def as_documents(label: str, scores: torch.Tensor) -> list[Scored]:
    """Sequences as documents of equal weight. scores: [B]."""
    return [Scored(f"{label}/{i}", 1, float(score)) for i, score in enumerate(scores.double())]


def check_vocabulary(task: str, vocabulary: int, keys: int, values: int, *, with_filler: bool) -> None:
    """Refuse a vocabulary with too few keys or values. TaskError."""
    needed = 2 * max(keys + 1 + int(with_filler), values)
    if vocabulary < needed or vocabulary % 2:
        filler = ", one of them as filler" if with_filler else ""
        raise TaskError(
            f"tasks.{task}.vocabulary must be even and >= {needed} for {keys} different keys and {values} different"
            f" values a sequence{filler}; got {vocabulary}"
        )


def check_length(task: str, length: int, needed: int, why: str) -> None:
    """Refuse a length below `needed`. TaskError."""
    if length < needed:
        raise TaskError(f"tasks.{task}.length must be >= {needed} for {why}; got {length}")


def check_at_least(task: str, key: str, value: float | None, least: float) -> None:
    """Refuse a number below `least`; None passes. TaskError."""
    if value is not None and value < least:
        raise TaskError(f"tasks.{task}.{key} must be >= {least}; got {value}")


def hash_options(task: str, options: object) -> str:
    """SHA-256 of a generated task: its name and the options that its sequences depend on."""
    text = json.dumps([task, options], sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()
