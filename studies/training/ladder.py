"""The row of the validity ladder that needs training: a model of the rule learns one batch by heart.

`archsearch check` hands it to `archsearch.kernels.ladder.climb`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.kernels.conformance.verdict import Verdict
from archsearch.kernels.dispatch import Backend
from archsearch.kernels.ladder import Check
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model

SEQUENCES, LENGTH, STEPS = 8, 256, 200
MODEL = Model(width=64, heads=2, layers=1)
LEARNING_RATE = 1e-2
SHARE = 0.5
"""Of the first loss, which the last must be below."""


def checks(rule: Rule, backend: Backend) -> tuple[Check, ...]:
    """Row 10 of a rule."""
    return (Check(10, "the loss falls", lambda: (loss_falls(rule, backend),)),)


def loss_falls(rule: Rule, backend: Backend = "auto") -> Verdict:
    """One batch of 8 sequences of 256 bytes, seen up to 200 times: the loss falls below half of the first. Ends where
    it does.
    """
    device = torch.device("cuda" if torch.cuda.is_available() and backend in ("auto", "triton") else "cpu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LanguageModel(rule, MODEL, None, 256, backend=backend).to(device)
        losses = [next(steps := _losses(model, _bytes().to(device)))]
        for loss in steps:
            losses.append(loss)
            if not loss >= SHARE * losses[0]:
                break
    where = f"of the first loss, after {len(losses) - 1} steps on {SEQUENCES} x {LENGTH} bytes"
    return Verdict("loss_falls", losses[-1] / losses[0], SHARE, where)


def _losses(model: LanguageModel, tokens: Tensor) -> Iterator[float]:
    """The loss before each step, and after the last."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for _ in range(STEPS + 1):
        optimiser.zero_grad()
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        yield loss.item()
        loss.backward()
        optimiser.step()


def _bytes() -> Tensor:
    """Text that is wherever Python is: the start of one of its own modules, [8, 257]."""
    raw = Path(argparse.__file__).read_bytes()[: SEQUENCES * (LENGTH + 1)]
    return torch.tensor(list(raw)).view(SEQUENCES, LENGTH + 1)
