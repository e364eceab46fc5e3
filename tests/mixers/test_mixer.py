"""The mixer of every rule: pieces equal the whole, nothing leaks, every weight lives, gates stay exact."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import (
    Rule,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    query_feedback,
    read,
    value,
    write,
)
from archsearch.errors import ConfigError, OperandError
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import Layer, Linear, LogSigmoid, LowRank, Projection, Sigmoid, Static, Vector
from archsearch.mixers.zoo import rules

WIDTH, HEADS, LENGTH = 32, 2, 21
PIECES = (0, 2, 2, 11, 12, 13, 21)

q, k, v, e = query("q"), key("k"), value("v"), key("e")
RULES = {
    "signed": Rule("signed", decay(log_decay("g", per="channel", signed=True)), delta_write(k, v), read(q)),
    "projected": Rule("projected", erase(e, strength=gate("gamma")), delta_write(k, v, strength=gate("beta")), read(q)),
    "static": Rule(
        "static", decay(log_decay("g")), erase(e, strength=0.5), write(k, channel_gate("w", of="value") * v), read(q)
    ),
    "feedback": Rule("feedback", decay(-0.1), delta_write(k, v, residual=query_feedback(q, gate("lam"))), read(q)),
    "grouped": rules["eda"],
    "odd_convolutions": rules["gated_delta_net"],
    "biased": Rule("biased", decay(log_decay("values")), delta_write(key("keys"), v, strength=gate("half")), read(q)),
}
LAYERS = {
    "biased": Layer(operands={"q": Vector(Linear(bias=True)), "half": Linear(bias=True)}),
    "signed": Layer(output_gate="sigmoid", norm_eps=1e-6),
    "projected": Layer(operands={"e": Projection("q"), "beta": Sigmoid(0.0, 2.0, LowRank(4, shared=True, bias=True))}),
    "static": Layer(conv=0, operands={"e": Static(), "g": LogSigmoid(2.0, LowRank(3)), "v": Vector(activation="relu")}),
    "feedback": Layer(
        conv=1, gate_first=True, operands={"q": Vector(norm="rms", rotary=True), "k": Vector(LowRank(8))}
    ),
    "grouped": Layer(value_heads=4, expand_v=0.5, skip=True, operands={"e": LowRank(4)}),
    "odd_convolutions": Layer(
        conv=3, conv_bias=True, operands={"q": Vector(conv=2), "k": Vector(LowRank(4, bias=True))}
    ),
}


def mixer_of(name: str) -> Mixer:
    """A zoo rule in its paper's layer, or one of the rules above in a layer of its own; in float64."""
    rule = RULES[name] if name in RULES else rules[name]
    return Mixer(rule, WIDTH, HEADS, LAYERS.get(name)).double()


everywhere = pytest.mark.parametrize("name", [*rules, *RULES])


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


@everywhere
@torch.no_grad()
def test_pieces_of_any_length_equal_the_whole(name: str) -> None:
    mixer, x = mixer_of(name), tokens()
    cache = mixer.init_cache(2)
    pieces = [mixer(x[:, a:b], cache=cache) for a, b in pairwise(PIECES)]
    torch.testing.assert_close(torch.cat(pieces, 1), mixer(x), rtol=0, atol=1e-10)


@everywhere
@torch.no_grad()
def test_one_token_at_a_time_equals_the_whole_in_float32(name: str) -> None:
    mixer, x = mixer_of(name).float(), tokens().float()
    cache = mixer.init_cache(2)
    steps = [mixer(x[:, i : i + 1], cache=cache) for i in range(LENGTH)]
    torch.testing.assert_close(torch.cat(steps, 1), mixer(x), rtol=0, atol=1e-4)
    assert cache.state.dtype == torch.float32


@everywhere
@torch.no_grad()
def test_packed_sequences_equal_separate_ones(name: str) -> None:
    mixer, lengths = mixer_of(name), [3, 0, 1, 9]
    parts = [tokens(1, length) for length in lengths]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    whole = mixer(torch.cat(parts, 1), cu_seqlens=offsets)
    torch.testing.assert_close(whole, torch.cat([mixer(part) for part in parts], 1), rtol=0, atol=1e-10)


@everywhere
@torch.no_grad()
def test_packed_pieces_go_on_where_each_sequence_stopped(name: str) -> None:
    mixer, x = mixer_of(name), tokens(2, 12)
    cache = mixer.init_cache(2)
    first = mixer(torch.cat([x[0, :5], x[1, :1]])[None], cache=cache, cu_seqlens=torch.tensor([0, 5, 6]))
    second = mixer(torch.cat([x[0, 5:], x[1, 1:]])[None], cache=cache, cu_seqlens=torch.tensor([0, 7, 18]))
    pieces = torch.stack([torch.cat([first[0, :5], second[0, :7]]), torch.cat([first[0, 5:], second[0, 7:]])])
    torch.testing.assert_close(pieces, mixer(x), rtol=0, atol=1e-10)


@everywhere
@torch.no_grad()
def test_the_past_does_not_depend_on_the_future(name: str) -> None:
    mixer, x = mixer_of(name), tokens()
    for factor in (1e-2, 1.0, 1e2):
        other = x.clone()
        other[:, 9:] += factor * torch.randn_like(other[:, 9:])
        before, after = mixer(x), mixer(other)
        torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-12)
        assert not torch.equal(after[:, 9:], before[:, 9:])


@everywhere
@torch.no_grad()
def test_a_sequence_does_not_depend_on_its_batch(name: str) -> None:
    mixer, x = mixer_of(name), tokens(3)
    torch.testing.assert_close(mixer(x)[1:2], mixer(x[1:2]), rtol=0, atol=1e-10)


@everywhere
def test_every_parameter_gets_a_gradient(name: str) -> None:
    mixer = mixer_of(name)
    mixer(tokens()).square().sum().backward()
    for path, parameter in mixer.named_parameters():
        assert parameter.grad is not None, path
        assert torch.isfinite(parameter.grad).all(), path
        assert parameter.grad.abs().sum() > 0, path
    for part in mixer.plan.parts:
        assert rows_of(mixer, part.name).abs().sum() > 0 or part.inputs == 0, part.name


def rows_of(mixer: Mixer, name: str) -> Tensor:
    """The gradient of an operand's rows of the fused projection."""
    assert mixer.projection.grad is not None
    start = sum(part.inputs for part in mixer.plan.parts[: [p.name for p in mixer.plan.parts].index(name)])
    part = next(part for part in mixer.plan.parts if part.name == name)
    return mixer.projection.grad[start : start + part.inputs]


@everywhere
def test_operands_have_the_shapes_that_the_rule_states(name: str) -> None:
    mixer = mixer_of(name)
    operands = mixer.operands(tokens())
    assert set(operands) == set(mixer.plan.rule.operands)
    sizes = mixer.plan.sizes
    named = {"B": 2, "T": LENGTH, "H": sizes.heads, "HV": sizes.value_heads, "K": sizes.key, "V": sizes.value}
    for operand in mixer.plan.rule.operands.values():
        assert list(operands[operand.name].shape) == [named[dim] for dim in operand.shape.strip("[]").split(", ")]


@pytest.mark.parametrize("name", [*rules, "signed"])
@torch.no_grad()
def test_under_bfloat16_autocast_gates_decays_and_state_are_float32(name: str) -> None:
    mixer = mixer_of(name).float()
    cache = mixer.init_cache(2)
    x = tokens().float()
    exact = mixer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, operands = mixer(x, cache=cache), mixer.operands(x)
    assert y.dtype == torch.bfloat16 and cache.state.dtype == torch.float32
    for operand in mixer.plan.rule.operands.values():
        vector = operand.is_address or operand.kind.value == "value"
        assert operands[operand.name].dtype == (torch.bfloat16 if vector else torch.float32), operand.name
    assert (y - exact).norm() < 0.05 * exact.norm()


def test_a_cache_carries_no_gradient_and_survives_training() -> None:
    mixer, x = mixer_of("eda"), tokens()
    cache = mixer.init_cache(2)
    mixer(x[:, :9], cache=cache)
    mixer(x[:, 9:], cache=cache).sum().backward()
    assert not cache.state.requires_grad


def test_the_cache_is_changed_in_place() -> None:
    mixer = mixer_of("q_delta")
    cache = mixer.init_cache(2)
    state, inputs = cache.state, cache.convolutions[0]
    mixer(tokens(), cache=cache)
    assert cache.state is state and state.abs().sum() > 0
    assert cache.convolutions[0] is inputs and inputs.abs().sum() > 0


def test_the_same_seed_gives_the_same_mixer() -> None:
    one, two = (torch.manual_seed(3) and Mixer(rules["eda"], WIDTH, HEADS) for _ in range(2))
    for (path, a), (_, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert torch.equal(a, b), path


def test_two_rules_of_one_seed_share_what_they_have_in_common() -> None:
    layer = Layer()
    torch.manual_seed(3)
    plain = Mixer(rules["gated_delta_net"], WIDTH, HEADS, layer)
    torch.manual_seed(3)
    more = Mixer(rules["eda_q_delta"], WIDTH, HEADS, layer)
    assert torch.equal(plain.output.projection, more.output.projection)
    for name in ("q", "k", "v", "g", "beta"):
        assert torch.equal(weights(plain, name), weights(more, name)), name
    assert torch.equal(plain.get_parameter("sources.g.A_log"), more.get_parameter("sources.g.A_log"))


def test_a_cache_of_another_mixer_is_refused_before_it_is_touched() -> None:
    mixer, other = Mixer(rules["delta_net"], WIDTH, 2), Mixer(rules["delta_net"], WIDTH, 4)
    cache = other.init_cache(2)
    with pytest.raises(
        OperandError, match=r"this mixer needs \[\[2, 16, 16\], \[3, 96\]\]. Use its own init_cache\(2\)"
    ):
        mixer(torch.randn(2, 5, WIDTH), cache=cache)
    assert not any(tensor.any() for tensor in (cache.state, *cache.convolutions))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_another_dtype_than_the_weights_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(OperandError, match=r"the mixer takes torch\.float32 on cpu, as its weights are; got torch\."):
        Mixer(rules["delta_net"], WIDTH, HEADS)(torch.zeros(1, 5, WIDTH, dtype=dtype))


def test_a_rule_without_values_makes_no_layer() -> None:
    rule = Rule("forget", erase(key("e")), read(query("q")))
    with pytest.raises(ConfigError, match=r"needs a value to be written; rule 'forget' takes e, q\. Add a write"):
        Mixer(rule, WIDTH, HEADS)


@pytest.mark.parametrize("batch", [-1, 2.0])
def test_a_cache_is_of_a_number_of_sequences(batch: Any) -> None:
    with pytest.raises(OperandError, match="init_cache takes a number of sequences"):
        Mixer(rules["delta_net"], WIDTH, HEADS).init_cache(batch)


def weights(mixer: Mixer, name: str) -> Tensor:
    """An operand's rows of the fused projection."""
    names = [part.name for part in mixer.plan.parts]
    start = sum(part.inputs for part in mixer.plan.parts[: names.index(name)])
    return mixer.projection[start : start + mixer.plan.parts[names.index(name)].inputs]


def test_what_is_no_tensor_is_refused() -> None:
    nothing: Any = None
    with pytest.raises(OperandError, match=r"the mixer takes a tensor \[B, T, 32\]; got NoneType"):
        Mixer(rules["delta_net"], WIDTH, HEADS)(nothing)


@pytest.mark.parametrize(
    ("shape", "offsets", "sequences", "message"),
    [
        ((2, 5, 31), None, None, "the mixer takes [B, T, 32]; got [2, 5, 31]"),
        ((5, 32), None, None, "the mixer takes [B, T, 32]; got [5, 32]"),
        ((1, 5, 32), torch.tensor([0, 4]), None, "cu_seqlens must rise from 0 to T = 5; got [0, 4]"),
        ((1, 5, 32), torch.tensor([0, 4, 3, 5]), None, "cu_seqlens must rise from 0 to T = 5; got [0, 4, 3, 5]"),
        ((2, 5, 32), None, 3, "the cache must hold 2 sequences; got 3. Use init_cache(2)"),
        (
            (2, 5, 32),
            torch.tensor([0, 5]),
            None,
            "cu_seqlens packs sequences along T with B = 1; got B = 2. Reshape to [1, B * T, ...]",
        ),
        (
            (1, 5, 32),
            torch.tensor([0.0, 5.0]),
            None,
            "cu_seqlens must be [N + 1] int32 or int64 offsets; got torch.float32 [2]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    shape: tuple[int, ...], offsets: Tensor | None, sequences: int | None, message: str
) -> None:
    mixer = Mixer(rules["delta_net"], WIDTH, HEADS)
    cache = None if sequences is None else mixer.init_cache(sequences)
    with pytest.raises(OperandError) as caught:
        mixer(torch.zeros(shape), cache=cache, cu_seqlens=offsets)
    assert str(caught.value) == message
