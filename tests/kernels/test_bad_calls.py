"""A call that means nothing is refused in one line: what must hold, what came, what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, value
from archsearch.errors import ArchsearchError, BackendError, HoleError, OperandError, RuleError
from archsearch.holes import optional
from archsearch.kernels.conformance import Shape, draw
from archsearch.kernels.dispatch import CompiledRule, compile
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

GDN = rules["gated_delta_net"]
FORGET = Rule("forget", decay(log_decay("g")), erase(key("e")), read(query("q")))
SIGNED = Rule(
    "signed",
    decay(log_decay("g", signed=True)),
    delta_write(key("k"), value("v"), strength=gate("beta")),
    read(query("q")),
)
SHAPE = Shape(batch=1, tokens=6, heads=2, value_heads=4, key_dim=3, value_dim=5)


built: Any = compile
triton_form: Any = CompiledRule(GDN, lower(GDN), "triton", None)
"""What is called wrongly on purpose has no types."""


def call(rule: Rule = GDN, *, without: str | None = None, **changes: Any) -> Any:
    """A good call of a rule but for `changes`."""
    inputs = draw(lower(rule), SHAPE)
    return built(rule, "torch")(**{name: x for name, x in {**inputs.tensors, **changes}.items() if name != without})


def step(rule: Rule = GDN, **changes: Any) -> Any:
    inputs = draw(lower(rule), SHAPE)
    token = {name: x[:, 0] for name, x in inputs.tensors.items()}
    return built(rule, "torch").step(**{"state": inputs.initial_state, **token, **changes})


def zeros(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(shape, **options)


def debug(call_: Callable[[], Any]) -> Callable[[pytest.MonkeyPatch], Any]:
    def act(monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("ARCHSEARCH_DEBUG", "1")
        return call_()

    return act


def without_interpreter(call_: Callable[[], Any]) -> Callable[[pytest.MonkeyPatch], Any]:
    def act(monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        return call_()

    return act


MESSAGES: dict[str, tuple[type[ArchsearchError], Callable[..., Any], str]] = {
    "an operand missing": (
        OperandError,
        lambda _: call(without="beta"),
        ("rule 'gated_delta_net' takes g, k, v, beta, q; 'beta' is missing. Pass it by keyword, shape [B, T, HV]"),
    ),
    "an operand too many": (
        OperandError,
        lambda _: call(lam=zeros(1, 6, 4)),
        "rule 'gated_delta_net' takes g, k, v, beta, q; got 'lam' as well. Leave it out",
    ),
    "a misspelled operand": (
        OperandError,
        lambda _: call(without="beta", betas=zeros(1, 6, 4)),
        (
            "rule 'gated_delta_net' takes g, k, v, beta, q; 'beta' is missing and 'betas' is none of them. "
            "Pass it by keyword, shape [B, T, HV]"
        ),
    ),
    "a number for a tensor": (
        OperandError,
        lambda _: call(beta=0.5),
        "operand 'beta' must be a tensor of shape [B, T, HV]; got float",
    ),
    "no token dimension": (
        OperandError,
        lambda _: call(k=zeros(1, 2, 3)),
        "operand 'k' must have shape [B, T, H, K]; got [1, 2, 3]",
    ),
    "a wrong number of tokens": (
        OperandError,
        lambda _: call(v=zeros(1, 7, 4, 5)),
        ("operand 'v' of rule 'gated_delta_net' must have shape [B, T, HV, V] = [1, 6, 4, 5]; got [1, 7, 4, 5]"),
    ),
    "a wrong key width": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 2, 4)),
        ("operand 'q' of rule 'gated_delta_net' must have shape [B, T, H, K] = [1, 6, 2, 4]; got [1, 6, 2, 3]"),
    ),
    "a wrong batch": (
        OperandError,
        lambda _: call(beta=zeros(2, 6, 4)),
        ("operand 'beta' of rule 'gated_delta_net' must have shape [B, T, HV] = [1, 6, 4]; got [2, 6, 4]"),
    ),
    "gates a key head": (
        OperandError,
        lambda _: call(beta=zeros(1, 6, 2)),
        ("operand 'beta' of rule 'gated_delta_net' must have shape [B, T, HV] = [1, 6, 4]; got [1, 6, 2]"),
    ),
    "value heads that do not divide": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 3, 3), q=zeros(1, 6, 3, 3)),
        "value heads must be a multiple of key heads; got HV=4, H=3 for rule 'gated_delta_net'",
    ),
    "no key heads": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 0, 3), q=zeros(1, 6, 0, 3)),
        "H must be at least 1; got 0 for rule 'gated_delta_net'. Only B and T may be 0",
    ),
    "no key channels": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 2, 0), q=zeros(1, 6, 2, 0)),
        "K must be at least 1; got 0 for rule 'gated_delta_net'. Only B and T may be 0",
    ),
    "a scale that is no number": (
        OperandError,
        lambda _: call(scale="1"),
        "scale must be a finite number; got '1'. Leave it out for the rule's own",
    ),
    "a scale that would lose its gradient": (
        OperandError,
        lambda _: call(scale=torch.ones((), requires_grad=True)),
        "scale must be a finite number; got tensor(1., requires_grad=True). Leave it out for the rule's own",
    ),
    "a scale of nan": (
        OperandError,
        lambda _: call(scale=float("nan")),
        "scale must be a finite number; got nan. Leave it out for the rule's own",
    ),
    "a sparse tensor": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 2, 3).to_sparse()),
        "operand 'k' must be dense; got torch.sparse_coo. Convert it with .to_dense()",
    ),
    "whole numbers": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 2, 3, dtype=torch.int64)),
        "operand 'k' must hold floats; got torch.int64. Convert it with .float()",
    ),
    "another device": (
        OperandError,
        lambda _: call(k=zeros(1, 6, 2, 3, device="meta")),
        "all operands must be on one device; 'k' is on meta, others on cpu",
    ),
    "a state of another shape": (
        OperandError,
        lambda _: call(initial_state=zeros(1, 4, 5, 3)),
        ("the state must have shape [B, HV, K, V] = [1, 4, 3, 5] (one a sequence when packed); got [1, 4, 5, 3]"),
    ),
    "a state of whole numbers": (
        OperandError,
        lambda _: call(initial_state=zeros(1, 4, 3, 5, dtype=torch.int64)),
        "the state must hold floats on cpu; got torch.int64 on cpu",
    ),
    "a state on another device": (
        OperandError,
        lambda _: call(initial_state=zeros(1, 4, 3, 5, device="meta")),
        "the state must hold floats on cpu; got torch.float32 on meta",
    ),
    "a state that is none": (
        OperandError,
        lambda _: call(initial_state=[0.0]),
        "initial_state must be a tensor; got list. Make it one with torch.tensor",
    ),
    "offsets as a list": (
        OperandError,
        lambda _: call(cu_seqlens=[0, 6]),
        "cu_seqlens must be a tensor; got list. Make it one with torch.tensor",
    ),
    "offsets as floats": (
        OperandError,
        lambda _: call(cu_seqlens=torch.tensor([0.0, 6.0])),
        "cu_seqlens must be [N + 1] int32 or int64 offsets on cpu; got torch.float32 [2] on cpu",
    ),
    "sparse offsets": (
        OperandError,
        lambda _: call(cu_seqlens=torch.tensor([0, 6]).to_sparse()),
        "cu_seqlens must be dense; got torch.sparse_coo. Convert it with .to_dense()",
    ),
    "a step from nothing": (
        OperandError,
        lambda _: step(state=None),
        "step takes a state [B, HV, K, V]; got None. Pass zeros before the first token",
    ),
    "offsets of nothing": (
        OperandError,
        lambda _: call(cu_seqlens=torch.tensor([0])),
        "cu_seqlens must be [N + 1] int32 or int64 offsets on cpu; got torch.int64 [1] on cpu",
    ),
    "offsets that end early": (
        OperandError,
        lambda _: call(cu_seqlens=torch.tensor([0, 5])),
        "cu_seqlens must rise from 0 to T = 6; got [0, 5]",
    ),
    "offsets that fall": (
        OperandError,
        lambda _: call(cu_seqlens=torch.tensor([0, 4, 3, 6])),
        "cu_seqlens must rise from 0 to T = 6; got [0, 4, 3, 6]",
    ),
    "offsets of a batch": (
        OperandError,
        lambda _: built(GDN, "torch")(
            **{name: torch.cat([x, x]) for name, x in draw(lower(GDN), SHAPE).tensors.items()},
            cu_seqlens=torch.tensor([0, 6]),
        ),
        "cu_seqlens packs sequences along T with B = 1; got B = 2. Reshape to [1, B * T, ...]",
    ),
    "one state for two packed sequences": (
        OperandError,
        lambda _: call(cu_seqlens=torch.tensor([0, 2, 6]), initial_state=zeros(1, 4, 3, 5)),
        ("the state must have shape [B, HV, K, V] = [2, 4, 3, 5] (one a sequence when packed); got [1, 4, 3, 5]"),
    ),
    "no values and no state": (
        OperandError,
        lambda _: call(FORGET),
        "rule 'forget' has no value operand, so V comes from initial_state [B, HV, K, V]; pass one",
    ),
    "a growing decay": (
        OperandError,
        debug(lambda: call(g=torch.full((1, 6, 4), 0.25))),
        ("log decay 'g' must be <= 0 everywhere; got a maximum of 0.25. Pass the natural log of the decay"),
    ),
    "a sign of zero": (
        OperandError,
        debug(lambda: call(SIGNED, g_sign=zeros(1, 6, 4))),
        "sign 'g_sign' must be -1 or 1 everywhere; got other values",
    ),
    "a step with tokens": (
        OperandError,
        lambda _: step(k=zeros(1, 1, 2, 3)),
        "step takes one token: operand 'k' must have shape [B, H, K], without T; got [1, 1, 2, 3]",
    ),
    "a step with all tokens": (
        OperandError,
        lambda _: step(GDN, **draw(lower(GDN), SHAPE).tensors),
        "step takes one token: operand 'g' must have shape [B, HV], without T; got [1, 6, 4]",
    ),
    "a step with other widths": (
        OperandError,
        lambda _: step(q=zeros(1, 2, 4)),
        "operand 'q' of rule 'gated_delta_net' must have shape [B, H, K] = [1, 2, 3]; got [1, 2, 4]",
    ),
    "a step with a number": (
        OperandError,
        lambda _: step(beta=zeros()),
        "step takes one token: operand 'beta' must have shape [B, HV], without T; got []",
    ),
    "a step without its operand": (
        OperandError,
        lambda _: step(k=None),
        "operand 'k' must be a tensor of shape [B, H, K]; got NoneType",
    ),
    "a step from a number": (
        OperandError,
        lambda _: step(state=0.0),
        "state must be a tensor; got float. Make it one with torch.tensor",
    ),
    "a step with a state of another shape": (
        OperandError,
        lambda _: step(state=zeros(1, 4, 5, 3)),
        ("the state must have shape [B, HV, K, V] = [1, 4, 3, 5] (one a sequence when packed); got [1, 4, 5, 3]"),
    ),
    "an unknown backend": (
        BackendError,
        lambda _: built(GDN, "cuda"),
        "backend must be one of auto, reference, torch, triton; got 'cuda'",
    ),
    "a name for a rule": (
        RuleError,
        lambda _: built("gated_delta_net"),
        "compile takes a Rule; got 'gated_delta_net'. A rule of the zoo is archsearch.rules[name]",
    ),
    "no tokens a chunk": (
        BackendError,
        lambda _: compile(GDN, chunk_size=0),
        ("chunk_size must be a whole number of at least 1 token; got 0. Leave it out for the plan's choice"),
    ),
    "half a token a chunk": (
        BackendError,
        lambda _: built(GDN, chunk_size=1.5),
        ("chunk_size must be a whole number of at least 1 token; got 1.5. Leave it out for the plan's choice"),
    ),
    "open holes": (
        HoleError,
        lambda _: compile(Rule("open", optional(erase(key("e")), name="erase"), read(query("q")))),
        "rule 'open' has open holes: erase. Fill them with archsearch.resolve(rule, choices)",
    ),
    "float64 in triton": (
        OperandError,
        lambda _: triton_form(**draw(lower(GDN), SHAPE).tensors),
        ('backend "triton" takes float32, float16 and bfloat16; got float64. Use backend="torch" or "reference"'),
    ),
    "a CPU tensor in triton": (
        BackendError,
        without_interpreter(lambda: triton_form(**draw(lower(GDN), SHAPE, dtype=torch.float32).tensors)),
        ('backend "triton" needs tensors on a CUDA device; got cpu. Move them, or use backend="torch" or "auto"'),
    ),
    "triton without a device": (
        BackendError,
        without_interpreter(lambda: compile(GDN, "triton")),
        'backend "triton" needs a CUDA device; this machine has none. Use backend="torch" or "auto"',
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, act, message = MESSAGES[case]
    with pytest.raises(kind) as caught:
        act(monkeypatch)
    assert str(caught.value) == message


def test_values_are_looked_at_in_debug_mode_alone() -> None:
    assert call(g=torch.full((1, 6, 4), 0.25, dtype=torch.float64)).output.isfinite().all()


@pytest.mark.parametrize(
    "changes",
    [
        {"v": zeros(1, 7, 4, 5)},
        {"k": zeros(1, 6, 2, 3, dtype=torch.int64)},
        {"beta": zeros(1, 6, 4, device="meta")},
        {"beta": zeros(1, 6, 4).to_sparse()},
        {"beta": 0.5},
        {"initial_state": zeros(1, 4, 5, 3)},
        {"initial_state": zeros(1, 4, 3, 5, dtype=torch.int64)},
        {"initial_state": zeros(1, 4, 3, 5).to_sparse()},
        {"scale": float("nan")},
        {"cu_seqlens": torch.tensor([0, 2, 5])},
        {"lam": zeros(1, 6, 4)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_right_call_before_excuses_no_wrong_one(changes: dict[str, Any]) -> None:
    rule = built(GDN, "torch")
    inputs = draw(lower(GDN), SHAPE)
    first = rule(initial_state=inputs.initial_state, scale=None, **inputs.tensors)
    messages: list[str] = []
    for again in (rule, built(GDN, "torch")):
        with pytest.raises(OperandError) as caught:
            again(**{"initial_state": inputs.initial_state, "scale": None, **inputs.tensors, **changes})
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    second = rule(initial_state=inputs.initial_state, scale=None, **inputs.tensors)
    assert torch.equal(first.output, second.output) and torch.equal(first.state, second.state)


def test_a_call_like_another_has_its_own_scale_and_tensors() -> None:
    rule, inputs = built(GDN, "torch"), draw(lower(GDN), SHAPE)
    whole = rule(scale=1.0, **inputs.tensors).output
    torch.testing.assert_close(rule(scale=0.5, **inputs.tensors).output, whole / 2)
    torch.testing.assert_close(rule(**inputs.tensors).output, whole * SHAPE.key_dim**-0.5)
    assert not rule(**{**inputs.tensors, "v": torch.zeros_like(inputs.tensors["v"])}).output.any()
