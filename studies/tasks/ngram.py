"""The byte n-gram that a language model must beat: interpolated Witten-Bell estimates, fitted on the training text.

Order n predicts a byte from the n bytes before it: order 0 knows byte frequencies alone, order 1 is conditional on
one previous byte (a bigram table). With c(h) the count of a context h, c(h b) the count of byte b after it and t(h)
the number of different bytes seen after it,

    p_n(b | h) = (c(h b) + t(h) p_{n-1}(b | h without its first byte)) / (c(h) + t(h)),    p_{-1} = 1 / 256.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BITS = 9
START = 256
"""Stands before the first byte of a text; never predicted."""

Codes = NDArray[np.int64]


def bits_per_byte(train: bytes, documents: Sequence[bytes], order: int) -> float:
    """Bits per byte of `documents`, each from its own start, under the n-gram of `order` fitted on `train`.

    order: 0 .. 5. Time and memory grow with len(train) * order.
    """
    if not 0 <= order <= 5:
        raise ValueError(f"order must be 0 .. 5; got {order}")
    history = [_contexts(text, order) for text in (train, *documents)]
    scored = np.concatenate(history[1:], axis=1)
    probability = np.full(scored.shape[1], 1 / 256)
    for n in range(order + 1):
        probability = _interpolated(history[0][: n + 1], scored[: n + 1], probability)
    return float(-np.log2(probability).sum() / len(probability))


def _contexts(text: bytes, order: int) -> Codes:
    """[order + 1, N]: row 0 the bytes, row i the byte i places before, `START` before the text."""
    padded = np.concatenate((np.full(order, START), np.frombuffer(text, dtype=np.uint8))).astype(np.int64)
    return np.stack([padded[order - i : len(padded) - i] for i in range(order + 1)])


def _interpolated(fitted: Codes, scored: Codes, lower: NDArray[np.float64]) -> NDArray[np.float64]:
    """One order of the recursion; `lower` is the probability of each scored byte under the order below."""
    grams, counts = np.unique(_packed(fitted), return_counts=True)
    contexts, first = np.unique(grams >> BITS, return_index=True)
    followers = np.diff(np.append(first, len(grams)))
    totals = np.add.reduceat(counts, first)
    wanted = _packed(scored)
    seen = _looked_up(grams, counts, wanted)
    total = _looked_up(contexts, totals, wanted >> BITS)
    different = _looked_up(contexts, followers, wanted >> BITS)
    known = total > 0
    return np.where(known, (seen + different * lower) / np.where(known, total + different, 1), lower)


def _packed(history: Codes) -> Codes:
    """Each column as one number, the farthest byte in the highest bits, the predicted byte in the lowest."""
    code = np.zeros(history.shape[1], dtype=np.int64)
    for row in history[::-1]:
        code = (code << BITS) | row
    return code


def _looked_up(keys: Codes, values: Codes, wanted: Codes) -> NDArray[np.float64]:
    """The value of each wanted key, 0 for keys that are not there; keys sorted."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0).astype(np.float64)
