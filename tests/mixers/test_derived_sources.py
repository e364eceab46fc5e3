"""Operands that a layer makes of other operands, of constants and of the tokens before: each against its formula."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from archsearch.dsl import Rule, channel_gate, decay, delta_write, gate, key, log_decay, query, read, value
from archsearch.errors import ConfigError
from archsearch.mixers.layer.gate_sources import step_size
from archsearch.mixers.layer.history import History
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import (
    Complement,
    Constant,
    Delayed,
    Gated,
    Layer,
    Linear,
    LowerBound,
    LowRank,
    Orthogonal,
    Preconditioner,
    RampDecay,
    Scaled,
    Sigmoid,
    Source,
    Static,
    Step,
    Vector,
    WeightDecay,
)
from archsearch.mixers.layer.packing import packing_of
from archsearch.mixers.zoo import rules

WIDTH, HEADS, KEY = 24, 2, 12
q, k, p, v = query("q"), key("k"), key("p"), value("v")
g, gc, beta = log_decay("g"), log_decay("gc", per="channel"), gate("beta")
m = channel_gate("m")
RULE = Rule("scalar", decay(g), delta_write(m * k, v, strength=beta, residual=p), read(q))
CHANNEL = Rule("channel", decay(gc), delta_write(m * k, v, strength=beta, residual=p), read(q))


def mixer_of(rule: Rule, **layer: Any) -> Mixer:
    """In float64, weights far from their start."""
    mixer = Mixer(rule, WIDTH, HEADS, Layer(**layer)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return mixer


@torch.no_grad()
def made(rule: Rule, **sources: Source) -> tuple[Mixer, dict[str, Tensor], Tensor]:
    """A mixer, its operands for x, and x [2, 9, WIDTH]."""
    mixer, x = mixer_of(rule, operands=sources), torch.randn(2, 9, WIDTH).double()
    return mixer, mixer.operands(x), x


def source(mixer: Mixer, name: str) -> Any:
    return mixer.sources[name]


def rows(mixer: Mixer, name: str, x: Tensor) -> Tensor:
    """What an operand's rows of the projection make of x, [B, T, rows]."""
    start = 0
    for part in mixer.plan.parts:
        if part.name == name:
            return F.linear(x, mixer.projection[start : start + part.inputs]).detach()
        start += part.inputs
    raise AssertionError(name)


def test_a_scaled_address_is_another_times_a_factor() -> None:
    for per, dim in (("head", 1), ("channel", KEY)):
        mixer, t, _ = made(RULE, p=Scaled("k", per=per))  # type: ignore[arg-type]
        assert source(mixer, "p").factor.shape == (HEADS, dim)
        torch.testing.assert_close(t["p"], t["k"] * source(mixer, "p").factor)
    mixer, t, _ = made(RULE, p=Scaled("k", start=0.71, norm="l2"))
    expected = t["k"] * source(mixer, "p").factor
    torch.testing.assert_close(t["p"], expected / (expected.square().sum(-1, keepdim=True) + 1e-6).sqrt())


def test_a_bounded_factor_starts_where_it_should_and_stays_below_1() -> None:
    mixer = Mixer(RULE, WIDTH, HEADS, Layer(operands={"p": Scaled("k", start=0.73, per="head", bounded=True)})).double()
    t = mixer.operands(torch.randn(2, 9, WIDTH).double())
    torch.testing.assert_close(t["p"], 0.73 * t["k"], rtol=1e-6, atol=0)
    with torch.no_grad():
        source(mixer, "p").factor.fill_(50.0)
    assert (mixer.operands(torch.randn(2, 9, WIDTH).double())["p"].norm(dim=-1) <= 1).all()


def test_combas_p_acts_because_nothing_normalises_it() -> None:
    """A factor a head in front of a norm is inert, and refused; Comba's gets a gradient."""
    with pytest.raises(ConfigError) as caught:
        Scaled("k", per="head", norm="l2")
    assert str(caught.value) == (
        "scaled.norm must be none where one factor scales a whole head, which a norm takes out again; got 'l2'"
    )
    mixer = Mixer(rules["comba"], WIDTH, HEADS).double()
    mixer(torch.randn(2, 9, WIDTH).double()).square().sum().backward()
    assert source(mixer, "p").factor.grad.abs().min() > 0


def test_a_gated_address_is_another_times_a_sigmoid_a_channel() -> None:
    mixer, t, x = made(RULE, p=Gated("k", scale=-1.0))
    a = rows(mixer, "p", x).unflatten(-1, (HEADS, KEY))
    torch.testing.assert_close(t["p"], -torch.sigmoid(a) * t["k"])


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_hgrn2_takes_in_what_it_forgets(floor: float) -> None:
    mixer, t, x = made(rules["hgrn2"], g=LowerBound(floor, Linear()), k=Complement("g"))
    f = floor + (1 - floor) * torch.sigmoid(rows(mixer, "g", x).unflatten(-1, (HEADS, KEY)))
    torch.testing.assert_close(t["g"].exp(), f)
    torch.testing.assert_close(t["k"], 1 - f)


def test_qeds_direction_is_orthogonal_to_its_key() -> None:
    _, t, _ = made(rules["qed"], d=Orthogonal("q", to="k", gate="b"), k=Vector(norm="l2"))
    unit = t["k"]
    u = t["b"] * t["q"]
    torch.testing.assert_close(t["d"], u - (unit * u).sum(-1, keepdim=True) * unit)
    assert (unit * t["d"]).sum(-1).abs().max() < 1e-3  # the norm's 1e-6


def test_a_constant_does_not_look_at_the_token() -> None:
    mixer, t, _ = made(rules["qed"], lam=Constant(0.05, bound=0.25))
    expected = 0.25 * torch.sigmoid(source(mixer, "lam").constant)
    torch.testing.assert_close(t["lam"], expected.expand(2, 9, HEADS))
    assert Mixer(rules["qed"], WIDTH, HEADS).operands(torch.zeros(1, 1, WIDTH))["lam"].flatten().tolist() == (
        pytest.approx([0.05] * HEADS)
    )
    _, t, _ = made(rules["comba"], d=Constant(1.0))
    assert t["d"].shape == (2, 9, HEADS) and torch.equal(t["d"][0, 0], t["d"][1, 8])


def test_a_static_address_can_start_equal_in_all_channels() -> None:
    mixer = Mixer(RULE, WIDTH, HEADS, Layer(operands={"p": Static(norm="none", start=-0.04)}))
    assert mixer.operands(torch.randn(1, 2, WIDTH))["p"].unique().tolist() == pytest.approx([-0.04])


def test_the_implicit_step_minimises_the_loss_after_it() -> None:
    """d/dS of |S - S'|^2 + b |v - S^T k|^2 vanishes at S = S' + eta k (v - S'^T k)^T."""
    before, key_, target, b = torch.randn(4, 3).double(), 3 * torch.randn(4).double(), torch.randn(3).double(), 0.7
    eta = step_size(torch.tensor(b, dtype=torch.float64), key_ @ key_, "implicit", 1e-6)
    after = (before + eta * torch.outer(key_, target - before.T @ key_)).requires_grad_()
    loss = (after - before).square().sum() + b * (target - after.T @ key_).square().sum()
    (slope,) = torch.autograd.grad(loss, after)
    assert slope.abs().max() < 1e-12


def test_the_exact_step_is_the_flow_of_the_delta_rule() -> None:
    """dS/dt = k (v - S^T k)^T over a time b, as a matrix exponential of [S; v^T]."""
    before, key_, target, b = torch.randn(4, 3).double(), 2 * torch.randn(4).double(), torch.randn(3).double(), 0.4
    eta = step_size(torch.tensor(b, dtype=torch.float64), key_ @ key_, "exact_ode", 1e-6)
    after = before + eta * torch.outer(key_, target - before.T @ key_)
    flow = torch.zeros(5, 5).double()
    flow[:4, :4], flow[:4, 4] = -torch.outer(key_, key_), key_
    expected = torch.matrix_exp(b * flow) @ torch.cat([before, target[None]])
    torch.testing.assert_close(after, expected[:4])


def test_the_step_of_kaczmarz_corrects_by_its_share() -> None:
    before, key_, target = torch.randn(4, 3).double(), 9 * torch.randn(4).double(), torch.randn(3).double()
    eta = step_size(torch.tensor(0.25).double(), key_ @ key_, "kaczmarz", 1e-12)
    after = before + eta * torch.outer(key_, target - before.T @ key_)
    torch.testing.assert_close(target - after.T @ key_, 0.75 * (target - before.T @ key_))


@pytest.mark.parametrize("form", ["kaczmarz", "implicit", "exact_ode"])
def test_no_key_is_overshot(form: str) -> None:
    n = torch.cat([torch.zeros(1), torch.logspace(-12, 12, 49)]).double()
    for b in (0.0, 1e-9, 0.5, 1.0):
        step = step_size(torch.full_like(n, b), n, form, 1e-6)
        assert step.isfinite().all() and ((step * n >= 0) & (step * n <= 1)).all()


@pytest.mark.parametrize("form", ["kaczmarz", "implicit", "exact_ode"])
def test_the_step_in_a_layer_sees_its_own_key(form: Any) -> None:
    mixer, t, x = made(rules["kaczmarz"], k=Vector(norm="none"), eta=Step("k", form, eps=1e-2))
    b = torch.sigmoid(rows(mixer, "eta", x))
    torch.testing.assert_close(t["eta"], step_size(b, t["k"].square().sum(-1), form, 1e-2))


@pytest.mark.parametrize("rule", [RULE, CHANNEL], ids=lambda rule: rule.name)
def test_the_preconditioner_is_the_papers_scan(rule: Rule) -> None:
    name = "g" if rule is RULE else "gc"
    mixer, t, _ = made(rule, m=Preconditioner("k", "beta", name))
    center = source(mixer, "m").center
    total = torch.zeros(2, HEADS, KEY).double()
    for i in range(9):
        g_ = t[name][:, i] if rule is CHANNEL else t[name][:, i, :, None]
        total = g_.exp() * total + t["beta"][:, i, :, None] * t["k"][:, i] ** 2
        r = torch.log(total + 1e-6) - center[:, None]
        torch.testing.assert_close(t["m"][:, i], 1.5 ** -(r / (1 + r.abs())))
    assert (t["m"] > 1 / 1.5).all() and (t["m"] < 1.5).all()


def test_a_preconditioner_without_a_decay_only_grows() -> None:
    _, t, _ = made(RULE, m=Preconditioner("k", "beta"))
    assert (t["m"].diff(dim=1) <= 0).all()


def test_shared_keys_are_preconditioned_for_each_value_head() -> None:
    layer = Layer(value_heads=4, operands={"m": Preconditioner("k", "beta", "g"), "beta": Step("k")})
    mixer = Mixer(RULE, WIDTH, HEADS, layer).double()
    t = mixer.operands(torch.randn(1, 5, WIDTH).double())
    assert t["m"].shape == (1, 5, 4, KEY) and t["beta"].shape == (1, 5, 4)


@pytest.mark.parametrize("form", ["exp", "sigmoid"])
def test_the_decays_of_rwkv_rise_over_the_channels(form: Any) -> None:
    layer = Layer(operands={"gc": RampDecay(form, low=-6.0, high=-1.0, projection=LowRank(4, shared=True))})
    z = torch.linspace(-6, -1, HEADS * KEY).view(HEADS, KEY)
    expected = -z.exp() if form == "exp" else -math.exp(-0.5) * torch.sigmoid(z)
    found = Mixer(CHANNEL, WIDTH, HEADS, layer).operands(torch.zeros(1, 1, WIDTH))["gc"][0, 0]
    torch.testing.assert_close(found, expected)
    mixer, t, _ = made(CHANNEL, gc=RampDecay(form, projection=LowRank(4, shared=True, bend="tanh")))
    lift = source(mixer, "gc").lift
    assert (t["gc"] < 0).all() and lift.bend == "tanh"


@pytest.mark.parametrize("bend", ["none", "tanh", "sigmoid"])
def test_a_low_rank_map_bends_between_its_halves(bend: Any) -> None:
    mixer, t, x = made(RULE, beta=Sigmoid(projection=LowRank(3, shared=True, bend=bend)))
    inner = rows(mixer, "beta", x)
    inner = {"none": inner, "tanh": inner.tanh(), "sigmoid": inner.sigmoid()}[bend]
    torch.testing.assert_close(t["beta"], torch.sigmoid(inner @ source(mixer, "beta").lift.up.T))


def test_weight_decay_shrinks_with_the_step() -> None:
    mixer, t, _ = made(rules["shifted"], g=WeightDecay("eta"), eta=Sigmoid())
    alpha = 1 - torch.sigmoid(source(mixer, "g").rate) * t["eta"]
    torch.testing.assert_close(t["g"].exp(), alpha)
    _, t, _ = made(rules["shifted"], g=WeightDecay("eta", start=0.9), k=Vector(delayed=True), eta=Step("k"))
    assert (t["g"] >= math.log(0.01) - 1e-9).all() and t["g"].isfinite().all()  # eta is huge at the first key, zero


def late_and_now(rule: Rule, name: str, vector: Vector, x: Tensor, **others: Source) -> tuple[Tensor, Tensor]:
    """An operand delayed and not, from the same weights: they start by name."""
    found: list[Tensor] = []
    for delayed in (True, False):
        torch.manual_seed(5)
        layer = Layer(operands={name: dataclasses.replace(vector, delayed=delayed), **others})
        with torch.no_grad():
            found.append(Mixer(rule, WIDTH, HEADS, layer).double().operands(x)[name])
    return found[0], found[1]


def test_a_delayed_vector_is_the_one_of_the_token_before() -> None:
    """With the feature elu + 1, whose value at 0 is not 0, the first is zero all the same."""
    x = torch.randn(2, 9, WIDTH).double()
    late, now = late_and_now(RULE, "p", Vector(activation="elu+1", norm="l2", conv=3), x)
    assert not late[:, 0].any() and torch.equal(late[:, 1:], now[:, :-1])


def test_another_vector_can_be_delayed_as_it_entered() -> None:
    _, t, _ = made(RULE, k=Vector(rotary=True), p=Delayed("k"))
    assert not t["p"][:, 0].any() and torch.equal(t["p"][:, 1:], t["k"][:, :-1])


def test_a_delayed_vector_carries_its_gradient_to_the_token_before() -> None:
    mixer = Mixer(RULE, WIDTH, HEADS, Layer(conv=0, operands={"p": Vector(delayed=True)})).double()
    x = torch.randn(1, 5, WIDTH).double().requires_grad_()
    (slope,) = torch.autograd.grad(mixer.operands(x)["p"][:, 3].square().sum(), x)
    assert slope[0, 2].abs().sum() > 0 and not slope[0, [0, 1, 3, 4]].any()


def test_the_token_shift_mixes_each_projection_on_its_own() -> None:
    mixer, x = mixer_of(RULE, token_shift=True, conv=0), torch.randn(2, 9, WIDTH).double()
    before = F.pad(x, (0, 0, 1, -1))
    assert mixer.shift is not None and len(mixer.shift) == len(mixer.plan.projected)
    history = History()
    start = 0
    found = mixer._projected(x, history)  # pyright: ignore[reportPrivateUsage]
    for mix, rows_ in zip(mixer.shift, mixer.plan.projected.values(), strict=True):
        mixed = x + (before - x) * mix
        expected = F.linear(mixed, mixer.projection[start : start + rows_])
        torch.testing.assert_close(found[..., start : start + rows_], expected)
        start += rows_
    assert start == mixer.plan.inputs


def test_a_group_norm_is_torchs() -> None:
    mixer = mixer_of(RULE, output_norm="group", output_gate="none", norm_eps=64e-5, expand_v=0.5)
    read_ = torch.randn(2, 9, HEADS, KEY // 2).double()
    output = mixer.output
    by_torch = torch.nn.GroupNorm(HEADS, HEADS * KEY // 2, eps=64e-5).double()
    with torch.no_grad():
        by_torch.weight.copy_(output.norm.flatten())
        assert output.norm_bias is not None
        by_torch.bias.copy_(output.norm_bias.flatten())
        expected = F.linear(by_torch(read_.flatten(2).flatten(0, 1)).unflatten(0, (2, 9)), output.projection)
        torch.testing.assert_close(output(read_, torch.empty(2, 9, 0), {}), expected)


def test_a_linear_gate_multiplies_as_it_is() -> None:
    mixer = mixer_of(RULE, output_gate="linear", gate_projection=LowRank(3, shared=True, bend="sigmoid"))
    read_, gate_rows = torch.randn(2, 9, HEADS, KEY).double(), torch.randn(2, 9, 3).double()
    lift = mixer.output.lift
    assert lift is not None and lift.up is not None
    normed = F.rms_norm(read_, (KEY,), mixer.output.norm, 1e-5).flatten(2)
    expected = F.linear(normed * (torch.sigmoid(gate_rows) @ lift.up.T), mixer.output.projection)
    torch.testing.assert_close(mixer.output(read_, gate_rows, {}), expected)


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_decayed_sum_is_the_loop_whole_packed_and_in_pieces(per_channel: bool) -> None:
    """Decays of 0 and -inf among them: nothing is divided."""
    shape = (1, 21, 2, 3) if per_channel else (1, 21, 2)
    logs = -torch.rand(shape).double()
    logs[:, 4], logs[:, 9], logs[:, 13] = -math.inf, 0.0, -200.0
    added = torch.randn(1, 21, 2, 3).double()
    expected = torch.zeros_like(added)
    total = torch.zeros(2, 3).double()
    offsets = [0, 5, 5, 6, 21]
    for t in range(21):
        total = torch.zeros_like(total) if t in offsets else total
        factor = logs[0, t].exp()
        total = (factor if per_channel else factor[:, None]) * total + added[0, t]
        expected[0, t] = total
    packing = packing_of(added, torch.tensor(offsets))
    memory = torch.zeros(4, 2, 3).double()
    torch.testing.assert_close(History(packing, {"a": memory}).decayed_sum("a", logs, added), expected)
    torch.testing.assert_close(memory, torch.stack([expected[0, 4], torch.zeros(2, 3).double(), *expected[0, [5, 20]]]))
    kept = {"a": torch.zeros(1, 2, 3).double()}
    pieces = [History(None, kept).decayed_sum("a", logs[:, a:b], added[:, a:b]) for a, b in pairwise([6, 6, 7, 16, 21])]
    torch.testing.assert_close(torch.cat(pieces, 1), expected[:, 6:])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Mixer(rules["hgrn2"], WIDTH, HEADS, Layer(value_heads=4, operands={"k": Complement("g")})),
            "layer.operands.k needs as many value heads as heads; got value_heads=4, heads=2",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"k": Complement("g")})),
            "layer.operands.k is made of a log decay per channel; got the log_decay 'g'",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"p": Orthogonal("q", "k", "beta")})),
            "layer.operands.p is made of a channel gate of the key; got the gate 'beta'",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"m": Preconditioner("v", "beta")})),
            "layer.operands.m is made of an address; got the value 'v'",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"m": Preconditioner("k", "beta", "beta")})),
            "layer.operands.m is made of a log decay; got the gate 'beta'",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"beta": Step("v")})),
            "layer.operands.beta is made of an address; got the value 'v'",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"p": Delayed("v")})),
            "layer.operands.p is made of a vector of its own space; got the value 'v'",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"p": Orthogonal("k", "q", "m"), "k": Scaled("p")})),
            "layer.operands go in a circle: k -> p -> k. Give one of them a projection of the token",
        ),
        (
            lambda: Mixer(RULE, WIDTH, HEADS, Layer(operands={"k": Vector(rotary=True, delayed=True)})),
            "layer.operands.k is rotary and delayed; the rotation would be the next token's. Leave one out",
        ),
        (
            lambda: Mixer(rules["gdn2"], WIDTH, HEADS, Layer(operands={"w": Preconditioner("k", "b")})),
            "layer.operands.w is a channel gate of the value; a preconditioner is one of the key",
        ),
        (lambda: Constant(0.3, bound=0.25), "constant.start must be in (0, 0.25); got 0.3"),
        (lambda: Scaled("k", start=1.0, bounded=True), "scaled.start must be in (0, 1); got 1.0"),
        (lambda: WeightDecay("eta", start=0.0), "weight_decay.start must be in (0, 1); got 0.0"),
        (lambda: LowerBound(1.0), "lower_bound.floor must be in [0, 1); got 1.0"),
        (lambda: RampDecay(low=0.0, high=-1.0), "ramp_decay needs low < high; got low=0.0, high=-1.0"),
        (lambda: Preconditioner("k", "beta", base=1.0), "preconditioner.base must be > 1; got 1.0"),
        (lambda: Step("k", eps=0.0), "step.eps must be > 0; got 0.0"),
        (lambda: Gated("k", scale=0.0), "gated.scale must be other than 0; got 0.0"),
        (lambda: LowRank(bend="relu"), "low_rank.bend must be one of none, tanh, sigmoid; got 'relu'"),  # type: ignore[arg-type]
    ],
)
def test_sources_that_make_no_sense_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert str(caught.value) == message


def test_the_shifted_rule_writes_at_the_unit_key_of_the_token_before() -> None:
    x = torch.randn(1, 9, WIDTH).double()
    late, now = late_and_now(rules["shifted"], "k", Vector(), x, eta=Sigmoid(), g=WeightDecay("eta"))
    assert not late[:, 0].any() and torch.equal(late[:, 1:], now[:, :-1])
    torch.testing.assert_close(now.square().sum(-1), torch.ones(1, 9, HEADS).double(), rtol=0, atol=0.2)
