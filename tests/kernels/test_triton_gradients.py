"""The kernel that makes every operand's gradient, alone: its chunks against autograd of the token loop in float64."""

from dataclasses import dataclass

import pytest
import torch
import triton.language as tl
from torch import Tensor

from archsearch.dsl import (
    Expression,
    Kind,
    Operand,
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.kernels.triton import generation, modules
from archsearch.kernels.triton.adjoint import numbers
from archsearch.kernels.triton.gradients.numbers import sums_of
from archsearch.kernels.triton.gradients.operands import gradient_operands
from archsearch.kernels.triton.serial_rows import span
from archsearch.kernels.triton.strengths import at_writes, plain_targets
from archsearch.lowering import Decay, NormalForm, Read, lower
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.zoo import rules

SCALE = 0.7
q, k, v, e, p = query("q"), key("k"), value("v"), key("e"), key("p")
g, g2, beta, lam, mu = log_decay("g"), log_decay("g2"), gate("beta"), gate("lam"), gate("mu")
turning = log_decay("g", signed=True)

RULES = {
    **{name: rules[name] for name in ("linear", "delta_net", "gated_delta_net", "q_delta", "mamba2")},
    **{name: rules[name] for name in ("eda_scalar", "eda_q_delta", "gated_delta_product")},
    "three": delta_product(3, gated=True),
    "four": delta_product(4, gated=False),
    "signed": Rule("signed", decay(turning), delta_write(k, v, strength=beta, residual=k + lam * q), read(q)),
    "signed_rows": Rule(
        "signed_rows", erase(e, strength=mu), decay(turning), delta_write(k, v, strength=beta), decay(g2), read(q)
    ),
    "previous": Rule(
        "previous",
        decay(g),
        simultaneous(erase(e, strength=mu), delta_write(k, v, strength=beta, reads="previous")),
        read(q),
    ),
    "gated_channels": Rule(
        "gated_channels",
        decay(g),
        delta_write(k, channel_gate("w", of="value") * v, strength=beta, residual=channel_gate("c") * k + lam * p),
        read(mu * q),
    ),
    "written_twice": Rule("written_twice", decay(g), write(mu * k + lam * p, beta * v), read(q + 0.5 * p)),
    "bonus": Rule("bonus", decay(g), write(k, v), read(q, bonus=bonus(channel_gate("c") * p, mu * k, v))),
}


@dataclass
class Case:
    """One call: sizes, operands [1, T, ...] and what the serial passes leave, all float64."""

    form: NormalForm
    chunk: int
    heads: int
    given: dict[str, Tensor]
    states: Tensor
    d_states: Tensor
    d_output: Tensor


def drawn(rule: Rule, *, tokens: int, chunk: int, heads: int, value_heads: int, key_dim: int, value_dim: int) -> Case:
    sizes = {"B": 1, "T": tokens, "H": heads, "HV": value_heads, "K": key_dim, "V": value_dim}
    form = at_writes(lower(rule))
    given: dict[str, Tensor] = {}
    for operand in form.operands:
        given[operand.name] = _drawn(operand, [sizes[dim] for dim in operand.shape.strip("[]").split(", ")])
    slots = -(-tokens // chunk) * value_heads
    states, d_states = (torch.randn(slots, value_dim, key_dim, dtype=torch.float64) for _ in range(2))
    d_output = torch.randn(1, tokens, value_heads, value_dim, dtype=torch.float64)
    return Case(form, chunk, heads, given, states, d_states, d_output)


def _drawn(operand: Operand, shape: list[int]) -> Tensor:
    if operand.kind is Kind.SIGN:
        return torch.randint(0, 2, shape).double() * 2 - 1
    if operand.kind is Kind.LOG_DECAY:
        return -torch.rand(shape, dtype=torch.float64)
    drawn = torch.randn(shape, dtype=torch.float64)
    return torch.nn.functional.normalize(drawn, dim=-1) if operand.is_address else drawn


def _sum(expression: Expression, of: dict[str, Tensor], like: Tensor) -> Tensor:
    total = torch.zeros_like(like)
    for term in expression:
        assert term.vector is not None
        product = term.coefficient * of[term.vector.name]
        for operand in term.gates:
            product = product * of[operand.name]
        total = total + product
    return total


def token_loop(
    form: NormalForm, tokens: list[dict[str, Tensor]], state: Tensor, extra: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, V], the state after and D [rows, T, V]; `extra` [rows, T, V] is added to the targets."""
    outputs: list[Tensor] = []
    deltas: list[list[Tensor]] = [[] for _ in form.rows]
    for t, of in enumerate(tokens):
        before, result = state, None
        for step in form.program:
            if isinstance(step, Decay):
                log = step.log_decay
                factor = (
                    of[log.name].exp() if isinstance(log, Operand) else torch.tensor(log, dtype=torch.float64).exp()
                )
                state = state * factor * (1.0 if step.sign is None else of[step.sign.name])
            elif isinstance(step, Read):
                address = _sum(step.address, of, state[:, 0])
                result = state.T @ address
                if step.bonus is not None:
                    weight, other = _sum(step.bonus.weight, of, address), _sum(step.bonus.address, of, address)
                    result = result + (address * weight * other).sum() * _sum(step.bonus.target, of, result)
            else:
                added = torch.zeros_like(state)
                for row in step:
                    r = form.rows.index(row)
                    seen = (before if row.previous else state).T @ _sum(row.residual, of, state[:, 0])
                    delta = _sum(row.target, of, state[0]) + extra[r, t] - seen
                    deltas[r].append(delta)
                    added = added + torch.outer(_sum(row.write, of, state[:, 0]), delta)
                state = state + added
        assert result is not None
        outputs.append(SCALE * result)
    return torch.stack(outputs), state, torch.stack([torch.stack(each) for each in deltas])


def expected(case: Case) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Gradients of the operands, D [slots, span, C, V] and the gradients of targets [rows, T, HV, V]."""
    form, rows = case.form, len(case.form.rows)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.given.items()}
    _, tokens, value_heads, value_dim = case.d_output.shape
    extra = torch.zeros(rows, tokens, value_heads, value_dim, dtype=torch.float64, requires_grad=True)
    deltas = torch.zeros(len(case.states), span(form), case.chunk, value_dim, dtype=torch.float64)
    loss = torch.zeros((), dtype=torch.float64)
    for slot in range(len(case.states)):
        head, start = slot % value_heads, slot // value_heads * case.chunk
        stop = min(tokens, start + case.chunk)
        own = {
            operand.name: head // (value_heads // case.heads) if operand.is_address else head
            for operand in form.operands
        }
        of = [{name: leaves[name][0, t, at] for name, at in own.items()} for t in range(start, stop)]
        outputs, after, found = token_loop(form, of, case.states[slot].T, extra[:, start:stop, head])
        deltas[slot, :rows, : stop - start] = found.detach()
        loss = loss + (outputs * case.d_output[0, start:stop, head]).sum() + (after * case.d_states[slot].T).sum()
    names = [operand.name for operand in (*gradient_operands(form), *numbers(form))]
    found = torch.autograd.grad(loss, [extra, *(leaves[name] for name in names)])
    return dict(zip(names, found[1:], strict=True)), deltas, found[0]


def inclusive(case: Case) -> tuple[Tensor, Tensor]:
    """G and its sign [slots, C], both inclusive."""
    _, tokens, value_heads, _ = case.d_output.shape
    logs, signs = torch.zeros(tokens, value_heads).double(), torch.ones(tokens, value_heads).double()
    for point in case.form.decays:
        log = point.log_decay
        logs = logs + (case.given[log.name][0] if isinstance(log, Operand) else log)
        signs = signs * (1.0 if point.sign is None else case.given[point.sign.name][0])
    pad = (0, 0, 0, -tokens % case.chunk)
    shape = (-1, case.chunk, value_heads)
    total = torch.nn.functional.pad(logs, pad).view(shape).cumsum(1)
    turned = torch.nn.functional.pad(signs, pad, value=1.0).view(shape).cumprod(1)
    return total.transpose(1, 2).reshape(-1, case.chunk), turned.transpose(1, 2).reshape(-1, case.chunk)


def found(case: Case, deltas: Tensor, d_targets: Tensor, *, keys: int, values: int) -> dict[str, Tensor]:
    """What the kernel writes, in buffers that were NaN."""
    form = case.form
    _, tokens, value_heads, value_dim = case.d_output.shape
    key_dim = case.states.shape[-1]
    total, turned = inclusive(case)
    each = -(-tokens // case.chunk)
    weights = torch.zeros(0) if form.read.bonus is None else _bonus_weights(case)
    tiles: dict[str, Tensor] = {}
    for operand in gradient_operands(form):
        shape = list(case.given[operand.name].shape)
        shape[2] = value_heads
        tiles[operand.name] = torch.full(shape, torch.nan)
    single = {operand.name: torch.full(case.given[operand.name].shape, torch.nan) for operand in numbers(form)}
    slots, blocks, places = each * value_heads, -(-key_dim // keys), case.chunk * span(form)
    tensors = [case.given[operand.name].float().contiguous() for operand in form.operands]
    common = {
        "table": None,
        "sums": torch.full((blocks, len(sums_of(form)), slots, places), torch.nan),
        "T": tokens,
        "NT": each,
        "H": case.heads,
        "HV": value_heads,
        "K": key_dim,
        "C": case.chunk,
        "S": places,
        "PACKED": False,
    }
    kernels = modules.load(form.name, generation.source(form))
    kernels.gradients[(slots * blocks,)](
        *tensors,
        *tiles.values(),
        decay=total.float().contiguous(),
        sign=turned.float().contiguous(),
        bonus=weights.float().contiguous(),
        states=case.states.float(),
        d_states=case.d_states.float(),
        deltas=deltas.float(),
        d_targets=d_targets.float().contiguous(),
        d_output=case.d_output.float(),
        scale=SCALE,
        zero=0.0,
        once=1,
        tokens=tokens,
        V=value_dim,
        BK=keys,
        BV=values,
        DT=tl.float32,
        PRECISION="ieee",
        STAGES=1,
        **common,
    )
    if single:
        kernels.numbers[(slots,)](*tensors, *single.values(), BLOCKS=blocks, **common)
    shared = value_heads // case.heads
    for operand in gradient_operands(form):
        if operand.is_address:
            tiles[operand.name] = tiles[operand.name].unflatten(2, (case.heads, shared)).sum(3)
    return tiles | single


def _bonus_weights(case: Case) -> Tensor:
    read = case.form.read
    assert read.bonus is not None
    _, tokens, value_heads, _ = case.d_output.shape
    weights = torch.zeros(-(-tokens // case.chunk), value_heads, case.chunk).double()
    for t in range(tokens):
        for head in range(value_heads):
            of = {
                operand.name: case.given[operand.name][
                    0, t, head // (value_heads // case.heads) if operand.is_address else head
                ]
                for operand in case.form.operands
            }
            parts = [
                _sum(part, of, case.states[0, 0]) for part in (read.address, read.bonus.weight, read.bonus.address)
            ]
            weights[t // case.chunk, head, t % case.chunk] = SCALE * (parts[0] * parts[1] * parts[2]).sum()
    return weights.reshape(-1, case.chunk)


def agree(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert set(given) == set(wanted)
    for operand, tensor in wanted.items():
        torch.testing.assert_close(given[operand].double(), tensor, rtol=1e-4, atol=1e-4, msg=f"gradient of {operand}")


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", RULES)
def test_gradients_of_a_chunk_are_those_of_the_token_loop(name: str) -> None:
    case = drawn(RULES[name], tokens=21, chunk=16, heads=1, value_heads=2, key_dim=20, value_dim=16)
    wanted, deltas, d_targets = expected(case)
    given = found(case, deltas, d_targets, keys=16, values=16)
    agree(given, wanted)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("keys, values", [(16, 16), (32, 16), (64, 64)])
def test_blocks_change_no_value(keys: int, values: int) -> None:
    case = drawn(RULES["eda_q_delta"], tokens=32, chunk=16, heads=2, value_heads=2, key_dim=60, value_dim=40)
    wanted, deltas, d_targets = expected(case)
    given = found(case, deltas, d_targets, keys=keys, values=values)
    agree(given, wanted)


def test_a_value_alone_in_a_target_receives_the_gradient_of_the_target() -> None:
    forms = {name: at_writes(lower(rule)) for name, rule in RULES.items()}
    assert plain_targets(forms["gated_delta_product"]) == {"v1": 0, "v2": 1}
    assert plain_targets(forms["eda_scalar"]) == {"v": 1}
    assert plain_targets(forms["gated_channels"]) == {}
    assert plain_targets(forms["bonus"]) == {}


@pytest.mark.parametrize("name", RULES)
def test_strengths_at_the_writes_change_no_output(name: str) -> None:
    given = drawn(RULES[name], tokens=5, chunk=16, heads=1, value_heads=1, key_dim=6, value_dim=4)
    tokens = [{operand: tensor[0, t, 0] for operand, tensor in given.given.items()} for t in range(5)]
    zero = torch.zeros(len(given.form.rows), 5, 4, dtype=torch.float64)
    forms = (given.form, lower(RULES[name]))
    (outputs, state, _), (wanted, last, _) = (token_loop(form, tokens, given.states[0].T, zero) for form in forms)
    torch.testing.assert_close(outputs, wanted)
    torch.testing.assert_close(state, last)


@pytest.mark.usefixtures("interpreted")
def test_a_strength_of_zero_has_its_gradient() -> None:
    case = drawn(RULES["eda_scalar"], tokens=16, chunk=16, heads=1, value_heads=1, key_dim=16, value_dim=16)
    case.given["beta"][:, ::3] = 0.0
    case.given["gamma"][:, ::2] = 0.0
    wanted, deltas, d_targets = expected(case)
    agree(found(case, deltas, d_targets, keys=16, values=16), wanted)
