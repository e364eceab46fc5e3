"""Two checks that compare no two forms: the kinds of a rule's results, and how far its state can grow."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from archsearch.kernels.call import check_values
from archsearch.kernels.conformance.inputs import Difficulty, Inputs, Shape, draw
from archsearch.kernels.conformance.setting import Setting, forward
from archsearch.kernels.conformance.verdict import Verdict, worst
from archsearch.kernels.operands import evaluate
from archsearch.lowering.spectrum import spectrum

LENGTHS = (1, 15, 75)
TOKENS = 4096
KEYS = ("random keys", "correlated keys", "constant keys", "equal keys")
PIECE = 256
"""Tokens after which the size of the state is looked at."""


def results_have_their_kind(setting: Setting) -> Verdict:
    """K = 60, V = 100, ragged lengths, shared keys: shapes as promised, a state in float32, all numbers finite.

    A float64 setting has a float64 state. The error counts the results that are not so.
    Errors: OperandError for a log decay above 0 or a sign other than -1 and 1.
    """
    wide = torch.float64 if setting.dtype == torch.float64 else torch.float32
    verdicts: list[Verdict] = []
    for tokens in LENGTHS:
        shape = Shape(batch=2, tokens=tokens, heads=2, value_heads=4, key_dim=60, value_dim=100)
        inputs = setting.inputs(shape)
        check_values(setting.form, inputs.tensors)
        found = forward(setting.compiled(), inputs)
        kept = [
            found.output.shape == (2, tokens, 4, 100) and found.output.dtype == setting.dtype,
            found.state.shape == inputs.initial_state.shape and found.state.dtype == wide,
            bool(found.output.isfinite().all() and found.state.isfinite().all()),
        ]
        where = f"{setting.dtype}, {tokens} tokens".removeprefix("torch.")
        verdicts.append(Verdict("results_have_their_kind", float(kept.count(False)), 0.0, where))
    return worst("results_have_their_kind", verdicts)


def state_holds_no_more_than_was_written(setting: Setting) -> Verdict:
    """||S|| over 4,096 tokens, as a share of ||S_0|| + the sum of ||b|| ||u|| over all writes; no contraction passes 1.

    Random, correlated, constant and equal keys side by side. `where` also tells a.b of the rows that recall, over the
    gates' ranges, and of a rule that is no contraction how far one token can enlarge the state.
    """
    name = "state_holds_no_more_than_was_written"
    found = spectrum(setting.form)
    steps = [
        f"{each.product} in [{round(each.lowest, 2) + 0.0:g}, {round(each.highest, 2) + 0.0:g}]" for each in found.steps
    ]
    steps += [] if found.contraction else [found.verdict]
    shares = _largest_shares(setting, _long_inputs(setting))
    verdicts = [Verdict(name, share, 1.0, "; ".join([keys, *steps])) for keys, share in zip(KEYS, shares, strict=True)]
    return worst(name, verdicts)


def _long_inputs(setting: Setting) -> Inputs:
    """One batch row for each of KEYS."""
    shape = Shape(batch=1, tokens=TOKENS, heads=1, value_heads=1, key_dim=8, value_dim=8)
    addresses = [operand.name for operand in setting.form.operands if operand.is_address]

    def drawn(difficulty: Difficulty) -> Inputs:
        seed, device = setting.seed, setting.device
        return draw(setting.form, shape, seed=seed, difficulty=difficulty, dtype=torch.float32, device=device)

    easy, hard = drawn(Difficulty.EASY), drawn(Difficulty.HARD)
    constant = hard.mapped(lambda name, tensor: tensor[:, :1].expand_as(tensor) if name in addresses else tensor)
    equal = hard.mapped(lambda name, tensor: hard.tensors[addresses[0]] if name in addresses else tensor)
    rows = (easy, hard, constant, equal)
    return Inputs(
        {name: torch.cat([row.tensors[name] for row in rows]) for name in hard.tensors},
        *(torch.cat([getattr(row, part) for row in rows]) for part in ("initial_state", "output_slope", "state_slope")),
    )


def _largest_shares(setting: Setting, inputs: Inputs) -> list[float]:
    """For each batch row; NaN once a state is not finite."""
    compiled = setting.compiled(PIECE // 4)
    state, shares = inputs.initial_state, list[Tensor]()
    budget = _size(state)[:, None] + _written(setting, inputs).cumsum(1)
    for start in range(0, TOKENS, PIECE):
        state = forward(compiled, replace(inputs.tokens(start, start + PIECE), initial_state=state)).state
        share = _size(state) / budget[:, start + PIECE - 1]
        shares.append(torch.where(share.isfinite(), share, torch.nan))
    return [float(share) for share in torch.stack(shares).amax(0)]


def _size(state: Tensor) -> Tensor:
    return _norm(state.flatten(1))


def _written(setting: Setting, inputs: Inputs) -> Tensor:
    """The size of what each token writes, [rows, T]."""
    total = torch.zeros(inputs.output_slope.shape[:2], device=setting.device)
    for row in setting.form.rows:
        write, target = (evaluate(part, inputs.tensors) for part in (row.write, row.target))
        if write is not None and target is not None:
            total = total + (_norm(write) * _norm(target))[:, :, 0]
    return total


def _norm(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1).sqrt()
