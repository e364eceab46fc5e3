"""Where operands come from: formulas, ranges at the start, the papers' layers, and what is refused."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, value, write
from archsearch.errors import ConfigError, HoleError
from archsearch.holes import holes, one_of, resolve
from archsearch.kernels.entering import normalised
from archsearch.kernels.entry import Norm
from archsearch.mixers.gated_delta_product import delta_product, delta_product_layer
from archsearch.mixers.layer.convolution import ShortConvolution
from archsearch.mixers.layer.initialisation import Stream
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import (
    BoundedDecay,
    FixedDecay,
    Layer,
    Linear,
    LogSigmoid,
    LowRank,
    MambaDecay,
    Projection,
    Sigmoid,
    SignedDecay,
    Source,
    Static,
    StepDecay,
    StepSize,
    Vector,
)
from archsearch.mixers.layer.papers import paper_layer
from archsearch.mixers.layer.plan import LayerPlan
from archsearch.mixers.layer.planning import plan_layer
from archsearch.mixers.layer.rotary import rotated
from archsearch.mixers.zoo import rules

q, k, v, e = query("q"), key("k"), value("v"), key("e")
PLAIN = Rule("plain", decay(log_decay("g")), erase(e, strength=gate("gamma")), delta_write(k, v), read(q))
CHANNEL = Rule("channel", decay(log_decay("g", per="channel")), write(k, v), read(q))


def made(rule: Rule, name: str, source: Source, x: Tensor | None = None, **layer: Any) -> Tensor:
    """The operand `name` as the rule takes it, in float64, for x [3, 7, 32]."""
    mixer = Mixer(rule, 32, 2, Layer(**layer, operands={name: source})).double()
    with torch.no_grad():
        return mixer.operands(torch.randn(3, 7, 32).double() if x is None else x)[name]


def source(mixer: Mixer, name: str) -> Any:
    """The module of one operand."""
    return mixer.sources[name]


def plan_of(name: str, **sizes: int) -> LayerPlan:
    layer = paper_layer(rules[name])
    assert layer is not None
    return plan_layer(rules[name], sizes.get("width", 64), sizes.get("heads", 2), layer)


def source_of(name: str, operand: str) -> Source:
    return next(part.source for part in plan_of(name).parts if part.name == operand)


def test_addresses_are_unit_and_values_are_not() -> None:
    assert torch.allclose(made(PLAIN, "e", Linear()).square().sum(-1), torch.ones(()).double(), atol=1e-3)
    assert made(PLAIN, "v", Linear()).square().sum(-1).max() < 0.9


def test_the_l2_norm_is_u_over_the_root_of_u_u_plus_1e_6() -> None:
    u = 1e-3 * torch.randn(5, 12).double()
    torch.testing.assert_close(normalised(u, Norm.L2), u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt())
    torch.testing.assert_close(normalised(u, Norm.RMS), math.sqrt(12) * normalised(u, Norm.L2))


def test_a_low_rank_address_lies_in_as_many_dimensions_a_head() -> None:
    x = torch.randn(3, 7, 32).double()
    address = made(PLAIN, "e", LowRank(4), x)
    assert [rank_of(address[:, :, head].flatten(0, 1)) for head in range(2)] == [4, 4]
    shared = made(PLAIN, "e", Vector(LowRank(4, shared=True), conv=0, activation="none", norm="none"), x)
    assert rank_of(shared.flatten(0, 1).flatten(1)) == 4


def rank_of(rows: Tensor) -> int:
    """Singular values above rounding."""
    return int((torch.linalg.svdvals(rows) > 1e-9).sum())


def test_a_projection_of_the_query_is_unit_and_turns_with_it() -> None:
    mixer = Mixer(PLAIN, 32, 2, Layer(operands={"e": Projection("q")})).double()
    with torch.no_grad():
        done = mixer.operands(torch.randn(3, 7, 32).double())
        by_hand = torch.stack([done["q"][:, :, h] @ source(mixer, "e").weight[h] for h in range(2)], 2)
    torch.testing.assert_close(done["e"], normalised(by_hand, Norm.L2))
    torch.testing.assert_close(done["q"].square().sum(-1), torch.ones(3, 7, 2).double(), rtol=0, atol=1e-2)


def test_a_static_address_is_the_same_for_every_token() -> None:
    address = made(PLAIN, "e", Static())
    assert torch.equal(address, address[:1, :1].expand_as(address))


def test_a_sigmoid_gate_starts_where_its_bias_says() -> None:
    assert made(PLAIN, "gamma", Sigmoid(-2.0), torch.zeros(3, 7, 32).double()).unique().item() == pytest.approx(
        0.1192, abs=1e-4
    )
    doubled = made(PLAIN, "gamma", Sigmoid(scale=2.0), torch.zeros(3, 7, 32).double())
    assert doubled.unique().item() == 1.0


@pytest.mark.parametrize(
    ("source", "low", "high"),
    [
        (MambaDecay(), -1.7, 0.0),
        (MambaDecay(1, 16), -1.7, -0.0009),
        (BoundedDecay("kda"), -0.6, -0.004),
        (BoundedDecay("eda"), -1.5, -0.0009),
        (LogSigmoid(16), -0.0434, -0.0432),
        (FixedDecay(), math.log(1 - 2**-5) - 1e-6, math.log(1 - 2**-6) + 1e-6),
    ],
)
@pytest.mark.parametrize("rule", [PLAIN, CHANNEL])
def test_a_log_decay_starts_in_its_range(rule: Rule, source: Source, low: float, high: float) -> None:
    decays = torch.cat([made(rule, "g", source, torch.zeros(3, 7, 32).double()).flatten() for _ in range(20)])
    assert low <= decays.min() and decays.max() <= high


@pytest.mark.parametrize("form", ["kda", "eda"])
def test_a_bounded_decay_never_passes_its_bound(form: Any) -> None:
    decays = made(PLAIN, "g", BoundedDecay(form, -5.0), 1e4 * torch.randn(3, 7, 32).double())
    assert -5.0 <= decays.min() < -4.9 and decays.max() <= 0


def test_the_eda_form_is_the_mamba_decay_near_zero() -> None:
    x, torch_seed = torch.zeros(3, 7, 32).double(), 5
    torch.manual_seed(torch_seed)
    bounded = made(PLAIN, "g", BoundedDecay("eda", -1e6), x)
    torch.manual_seed(torch_seed)
    torch.testing.assert_close(bounded, made(PLAIN, "g", MambaDecay(1, 16), x), rtol=1e-5, atol=0)


def test_mamba2_decays_by_its_own_step_size() -> None:
    mixer = Mixer(rules["mamba2"], 32, 2).double()
    operands = mixer.operands(torch.randn(3, 7, 32).double())
    torch.testing.assert_close(operands["g"], -source(mixer, "g").A_log.exp() * operands["dt"])
    sizes = mixer.operands(torch.zeros(1, 1, 32).double())["dt"]
    assert sizes.min() >= 1e-4 and sizes.max() <= 0.1001


def test_a_step_decay_takes_any_gate_for_its_step_size() -> None:
    layer = Layer(operands={"dt": Sigmoid(0.0), "g": StepDecay("dt")})
    mixer = Mixer(rules["mamba2"], 32, 2, layer).double()
    operands = mixer.operands(torch.randn(3, 7, 32).double())
    torch.testing.assert_close(operands["g"], -source(mixer, "g").A_log.exp() * operands["dt"])
    assert operands["dt"].min() > 0 and operands["dt"].max() < 1


def test_a_signed_decay_gives_log_and_sign_of_one_tanh() -> None:
    rule = Rule("signed", decay(log_decay("g", signed=True)), write(k, v), read(q))
    signed = source(Mixer(rule, 32, 2, Layer(operands={"g": SignedDecay()})).double(), "g")
    a = torch.linspace(-3, 3, 14).double().view(1, 7, 2).requires_grad_()
    pair = signed({"g": a}, None, {})
    alpha = pair["g_sign"] * pair["g"].exp()
    torch.testing.assert_close(alpha, torch.tanh(a + signed.bias))
    (slope,) = torch.autograd.grad(alpha.sum(), a)
    torch.testing.assert_close(slope, 1 - alpha.detach() ** 2)
    assert signed({"g": torch.zeros(1, 1, 2)}, None, {})["g_sign"].flatten().tolist() == [1.0, -1.0]


def test_a_rotation_keeps_lengths_and_sees_distances_only() -> None:
    a, b = torch.randn(1, 1, 1, 8).double(), torch.randn(1, 1, 1, 8).double()

    def score(i: int, j: int) -> float:
        return float((rotated(a, torch.tensor([[i]])) * rotated(b, torch.tensor([[j]]))).sum())

    assert score(3, 1) == pytest.approx(score(10, 8)) and score(3, 1) != pytest.approx(score(3, 2))
    assert float(rotated(a, torch.tensor([[7]])).norm()) == pytest.approx(float(a.norm()))


def test_the_convolution_looks_back_and_only_there() -> None:
    convolution = ShortConvolution([(Stream(0), 3)], 4).double()
    x = torch.zeros(1, 9, 3).double()
    x[:, 2] = 1.0
    y = convolution(x)[0]
    assert y[:2].abs().sum() == 0 and y[6:].abs().sum() == 0
    torch.testing.assert_close(y[2:6], convolution.weight.T.flip(0))


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("linear", {"conv": 0, "output_gate": "none"}),
        ("retnet", {"conv": 0, "output_gate": "swish", "expand_v": 2.0}),
        ("mamba2", {"conv": 4, "conv_bias": True, "skip": True, "gate_first": True, "expand_v": 2.0}),
        ("gla", {"conv": 0, "output_gate": "swish"}),
        ("delta_net", {"conv": 4, "output_gate": "none", "expand_v": 1.0}),
        ("gated_delta_net", {"conv": 4, "output_gate": "swish", "expand_v": 2.0}),
        ("kda", {"output_gate": "sigmoid", "gate_projection": LowRank(None, shared=True, bias=True), "expand_v": 1.0}),
        ("q_delta", {"output_gate": "swish", "norm_eps": 1e-6, "expand_v": 2.0}),
        ("eda", {"output_gate": "sigmoid", "conv": 4, "expand_v": 1.0}),
    ],
)
def test_a_layer_is_its_papers(name: str, fact: dict[str, object]) -> None:
    layer = paper_layer(rules[name])
    assert {key: getattr(layer, key) for key in fact} == fact


@pytest.mark.parametrize(
    ("name", "operand", "source"),
    [
        ("linear", "q", Vector(conv=0, activation="elu+1", norm="none")),
        ("retnet", "k", Vector(conv=0, activation="none", norm="none", rotary=True)),
        ("retnet", "g", FixedDecay()),
        ("gla", "g", LogSigmoid(16, LowRank(16, shared=True, bias=True))),
        ("mamba2", "g", StepDecay("dt", 1, 16)),
        ("delta_net", "k", Vector(conv=4, activation="silu", norm="l2")),
        ("gated_delta_net", "g", MambaDecay(0, 16, Linear())),
        ("kda", "g", MambaDecay(1, 16, LowRank(32, shared=True))),
        ("gdn2", "w", Sigmoid()),
        ("q_delta", "lam", Sigmoid(bias=-0.8)),
        ("eda", "e", Vector(LowRank(16), conv=0, activation="none", norm="l2")),
        ("eda", "g", BoundedDecay("eda", -5.0, LowRank(16))),
        ("eda", "gamma", Sigmoid(bias=-2.0)),
        ("eda_scalar", "g", BoundedDecay("eda", -5.0, Linear())),
        ("gated_delta_product", "beta2", Sigmoid(scale=2.0)),
    ],
)
def test_an_operand_comes_from_where_the_paper_says(name: str, operand: str, source: Source) -> None:
    assert source_of(name, operand) == source


def test_a_rule_that_is_not_the_papers_gets_the_default_layer() -> None:
    imposter = Rule("eda", decay(log_decay("g")), write(k, v), read(q))
    respelled = Rule("delta_net", delta_write(key("kk"), v, strength=gate("beta")), read(q))
    assert respelled.hash == rules["delta_net"].hash
    assert paper_layer(imposter) is None and paper_layer(respelled) is None
    assert Mixer(imposter, 32, 2).plan.layer == Layer()


def test_delta_product_of_three_writes_has_three_strengths() -> None:
    rule = delta_product(3, gated=False)
    plan = plan_layer(rule, 32, 2, delta_product_layer(3, gated=False))
    assert [part.name for part in plan.parts if part.source == Sigmoid(scale=2.0)] == ["beta1", "beta2", "beta3"]


def test_every_layer_keeps_its_holes_until_they_are_filled() -> None:
    layer = Layer(head_dim=one_of(8, 16), operands={"e": LowRank(one_of(2, 4, 8)), "gamma": Sigmoid(one_of(0.0, -2.0))})
    assert list(holes(layer)) == ["head_dim", "operands/e/rank", "operands/gamma/bias"]
    with pytest.raises(HoleError, match="open holes: head_dim, operands/e/rank, operands/gamma/bias"):
        Mixer(PLAIN, 32, 2, layer)
    closed = resolve(layer, {"head_dim": "8", "operands/e/rank": "4", "operands/gamma/bias": "-2.0"})
    assert closed == Layer(head_dim=8, operands={"e": LowRank(4), "gamma": Sigmoid(-2.0)})
    assert closed.only(["gamma"]) == Layer(head_dim=8, operands={"gamma": Sigmoid(-2.0)})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Mixer(rules["delta_net"], 32, 2, Layer(operands={"lam": Sigmoid()})),
            "layer.operands names 'lam'; rule 'delta_net' takes k, v, beta, q. Remove it, or rename it",
        ),
        (
            lambda: Mixer(rules["delta_net"], 32, 2, Layer(operands={"beta": MambaDecay()})),
            "layer.operands.beta is a gate and takes one of Linear, LowRank, Sigmoid, StepSize, Exponential, Constant, "
            "Step; got MambaDecay",
        ),
        (
            lambda: Mixer(rules["delta_net"], 32, 2, Layer(operands={"q": Projection("kk")})),
            "layer.operands.q is made of 'kk'; rule 'delta_net' takes k, v, beta, q",
        ),
        (
            lambda: Mixer(rules["delta_net"], 32, 2, Layer(operands={"q": Projection("k"), "k": Projection("q")})),
            "layer.operands go in a circle: k -> q -> k. Give one of them a projection of the token",
        ),
        (
            lambda: Mixer(rules["delta_net"], 32, 2, Layer(operands={"q": Projection("v")})),
            "layer.operands.q is made of a vector of its own space; got the value 'v'",
        ),
        (
            lambda: Mixer(rules["mamba2"], 32, 2, Layer(operands={"g": StepDecay("k")})),
            "layer.operands.g is made of a gate; got the key 'k'",
        ),
        (
            lambda: Mixer(rules["retnet"], 30, 2),
            "layer.operands.k.rotary needs an address of even width; got a key of width 15",
        ),
        (
            lambda: Mixer(rules["eda"], 30, 4),
            "width must be a multiple of heads; got width=30, heads=4. Change one, or set layer.head_dim",
        ),
        (
            lambda: Mixer(rules["eda"], 32, 2, Layer(value_heads=3)),
            "layer.value_heads must be a multiple of heads; got value_heads=3, heads=2",
        ),
        (
            lambda: Mixer(rules["eda"], 32, 2, Layer(expand_v=0.33)),
            "layer.expand_v times the head dimension must be whole; got 0.33 * 16",
        ),
        (
            lambda: Mixer(rules["eda"], 32, 2, Layer(operands={"g": "linear"})),  # type: ignore[dict-item]
            "layer.operands.g is a log_decay and takes one of Linear, LowRank, MambaDecay, BoundedDecay, LogSigmoid, "
            "CappedForget, LowerBound, RampDecay, StepDecay, WeightDecay, FixedDecay; got str",
        ),
        (
            lambda: Mixer(rules["eda"], 32, 2.0),  # type: ignore[arg-type]
            "width and heads must be whole numbers of at least 1; got width=32, heads=2.0",
        ),
        (
            lambda: Mixer(rules["eda"], 32, 2, {"conv": 4}),  # type: ignore[arg-type]
            "layer must be a Layer; got dict. Write Layer(conv=4, ...)",
        ),
        (lambda: Layer(conv=4.5), "layer.conv must be a whole number >= 0 (0: none); got 4.5"),  # type: ignore[arg-type]
        (lambda: Layer(head_dim="8"), "layer.head_dim must be a whole number >= 1; got '8'"),  # type: ignore[arg-type]
        (lambda: Layer(expand_v=float("inf")), "layer.expand_v must be > 0; got inf"),
        (lambda: Layer(conv=-1), "layer.conv must be >= 0 (0: none); got -1"),
        (
            lambda: Layer(output_gate="tanh"),  # type: ignore[arg-type]
            "layer.output_gate must be one of swish, sigmoid, linear, none; got 'tanh'",
        ),
        (lambda: LowRank(0), "low_rank.rank must be >= 1; got 0"),
        (lambda: MambaDecay(4, 4), "mamba_decay needs 0 <= low < high; got low=4, high=4"),
        (lambda: StepSize(0.0, 0.1), "step_size needs 0 < low < high; got low=0.0, high=0.1"),
        (lambda: BoundedDecay(bound=5.0), "bounded_decay.bound must be < 0; got 5.0"),
    ],
)
def test_a_layer_that_makes_no_sense_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert str(caught.value) == message


def test_a_sign_comes_with_its_decay() -> None:
    rule = Rule("signed", decay(log_decay("g", signed=True)), write(k, v), read(q))
    with pytest.raises(ConfigError) as caught:
        Mixer(rule, 32, 2, Layer(operands={"g_sign": Sigmoid()}))
    assert (
        str(caught.value)
        == "layer.operands names the sign 'g_sign'; it comes with its log decay. Give the source there"
    )


def test_sources_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layer().conv = 3  # type: ignore[misc]
