"""Peers beside ours: each computes the rule that it stands for, gets no speed for other values, breaks only itself."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.kernels.bench import ahead, beside, peers
from archsearch.kernels.bench.apart import Broken, start
from archsearch.kernels.bench.beside import handed_on, measure_apart, measure_peer, verdict_of
from archsearch.kernels.bench.case import Asked, Case, cases_of
from archsearch.kernels.bench.cold import Cold
from archsearch.kernels.bench.measure import Measured, Role, inputs_of, without_speed
from archsearch.kernels.bench.peers import PEERS, Peer, peers_of, why_no_peers
from archsearch.kernels.bench.report import Benched
from archsearch.kernels.bench.run import run
from archsearch.kernels.dispatch import compile
from archsearch.mixers.zoo import rules

TINY = Case(torch.device("cpu"), torch.float32, batch=2, tokens=70, heads=2, key_dim=8, value_dim=8, step_batch=3)


def rule_of(name: str) -> Callable[..., tuple[Tensor, None]]:
    """A stand-in that computes a rule of the zoo."""

    def function(*, output_final_state: bool, **operands: Tensor) -> tuple[Tensor, None]:
        assert not output_final_state
        found = compile(rules[name])(initial_state=None, scale=None, cu_seqlens=None, **operands)
        return found.output, None

    return function


def product(
    *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, num_householder: int, output_final_state: bool
) -> tuple[Tensor, None]:
    """Its meaning by hand: the state decays once a token, then the writes follow each other, then the read."""
    state = torch.zeros(*k[:, 0].shape, v.shape[-1])
    outputs: list[Tensor] = []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        for row in range(t * num_householder, (t + 1) * num_householder):
            recalled = torch.einsum("bhk,bhkv->bhv", k[:, row], state)
            correction = beta[:, row, :, None] * (v[:, row] - recalled)
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, row], correction)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1), None


def comba(
    *, q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor, output_final_state: bool
) -> tuple[Tensor, None]:
    """Its kernel's meaning by hand: p recalls from the state before it decays."""
    state = torch.zeros(*k[:, 0].shape, v.shape[-1])
    outputs: list[Tensor] = []
    for t in range(q.shape[1]):
        correction = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", p[:, t], state))
        state = state * g[:, t, :, None, None].exp() + torch.einsum("bhk,bhv->bhkv", k[:, t], correction)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1), None


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsearch.kernels.bench.timing.SECONDS", 0.0)


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Callable[[Peer, Callable[..., tuple[Tensor, None]]], None]:
    """Installs a function where a peer's is looked for."""

    def install(peer: Peer, function: Callable[..., tuple[Tensor, None]]) -> None:
        names = [peer.module, *([peer.forced[0]] if peer.forced else [])]
        for name in names:
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                path = ".".join(parts[:end])
                if path not in sys.modules:
                    monkeypatch.setitem(sys.modules, path, ModuleType(path))
        vars(sys.modules[peer.module])[peer.function] = function
        for module in (peers, beside):
            monkeypatch.setattr(module, "version", version_of)

    return install


def version_of(package: str) -> str:
    return "0.0"


def refuses(**operands: Tensor) -> tuple[Tensor, None]:
    raise RuntimeError("not on this card\nand more")


def peer_of(rule: str, package: str = "fla-core") -> Peer:
    return next(peer for peer in PEERS if peer.rule == rule and peer.package == package)


STAND_INS = {
    "chunk_gated_delta_product": product,
    "chunk_comba": comba,
    "chunk_simple_gla": rule_of("simple_gla"),
    "chunk_gla": rule_of("gla"),
    "chunk_delta_rule": rule_of("delta_net"),
    "chunk_gated_delta_rule": rule_of("gated_delta_net"),
    "chunk_kda": rule_of("kda"),
    "chunk_gdn2": rule_of("gdn2"),
}


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.package}-{peer.rule}")
def test_a_peer_gets_the_operands_of_the_rule_it_stands_for(
    peer: Peer, put: Callable[[Peer, Callable[..., tuple[Tensor, None]]], None]
) -> None:
    """With what the function means in its place, output and gradients are those of the rule."""
    put(peer, STAND_INS[peer.function])
    rule = rules[peer.rule]
    checked = Peer(
        peer.rule,
        peer.package,
        peer.module,
        peer.function,
        peer.operands,
        prepared=peer.prepared,
        constants=peer.constants,
        rows=peer.rows,
    )
    assert set(peer.operands) == set(rule.operands)
    assert verdict_of(checked, rule, inputs_of(rule, TINY), TINY).passed
    (found,) = measure_peer(peer, rule, (TINY,))
    assert [timing.part for timing in found.timings] == ["forward", "forward + backward"]
    assert found.path.startswith(f"{peer.package} 0.0, {peer.function}") and found.role is peer.role


def test_a_peer_with_other_values_gets_no_speed(
    put: Callable[[Peer, Callable[..., tuple[Tensor, None]]], None],
) -> None:
    def scaled(**operands: Tensor) -> tuple[Tensor, None]:
        return 1.01 * rule_of("gated_delta_net")(**operands)[0], None  # pyright: ignore[reportArgumentType]

    peer = peer_of("gated_delta_net")
    put(peer, scaled)
    (found,) = measure_peer(peer, rules["gated_delta_net"], (TINY,))
    assert not found.verdict.passed and found.timings == ()


def test_a_peer_that_raises_is_told_at_every_size(
    put: Callable[[Peer, Callable[..., tuple[Tensor, None]]], None],
) -> None:
    peer = peer_of("gla")
    put(peer, refuses)
    both = measure_peer(peer, rules["gla"], cases_of(Asked(("1x20", "2x20")), TINY))
    assert [each.verdict.where for each in both] == ["RuntimeError: not on this card"] * 2
    assert all(each.timings == () and not each.verdict.passed for each in both)


def test_what_the_peer_refuses_is_lifted(
    put: Callable[[Peer, Callable[..., tuple[Tensor, None]]], None],
) -> None:
    peer = peer_of("simple_gla")
    assert peer.forced is not None
    put(peer, rule_of("simple_gla"))
    measure_peer(peer, rules["simple_gla"], (TINY,))
    assert getattr(import_module(peer.forced[0]), peer.forced[1]) is True


def test_a_rule_without_a_peer_has_none() -> None:
    assert peers_of(rules["linear"]) == ()
    assert why_no_peers(TINY) == "peers run on a CUDA device only"


def test_a_rule_of_the_same_name_with_other_operands_has_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_installed", lambda peer: True)  # pyright: ignore[reportUnknownLambdaType]
    assert [peer.package for peer in peers_of(rules["gated_delta_net"])] == ["fla-core", "flash-qla"]
    other = Rule("gated_delta_net", *rules["q_delta"].steps)
    assert peers_of(other) == ()


def test_what_the_peer_hands_on_is_told() -> None:
    log = logging.getLogger("fla.backends")
    level = log.level
    with handed_on() as found:
        log.info("[FLA Backend] common.chunk_bwd_dqkwg -> tilelang")
        log.info("[FLA Backend] common.chunk_fwd_o -> intracard rejected: not in inference mode")
    assert found == ["common.chunk_bwd_dqkwg -> tilelang"]
    assert log.level == level and log.handlers == []


def test_a_proxy_is_told_as_one() -> None:
    assert {peer.rule for peer in PEERS if peer.role is Role.PROXY} == {"eda", "eda_scalar", "q_delta"}
    assert all(peer.remark for peer in PEERS if peer.role is Role.PROXY or not peer.gradients)


def variable(name: str) -> str | None:
    return os.environ.get(name)


def dies() -> None:
    os._exit(7)


def raises() -> None:
    raise ValueError("no such kernel")


def test_a_process_of_its_own_has_its_own_environment() -> None:
    assert start(variable, ("ARCHSEARCH_TEST",), {"ARCHSEARCH_TEST": "there"}).result() == "there"
    assert "ARCHSEARCH_TEST" not in os.environ


def test_what_breaks_a_process_breaks_that_one_alone() -> None:
    died, raised = start(dies, ()), start(raises, ())
    assert died.result() == Broken("its process ended with exit code 7")
    assert raised.result() == Broken("ValueError: no such kernel")


def test_a_peer_that_is_not_there_is_told() -> None:
    (found,) = measure_apart(Peer("gla", "rich", "no_such_module", "f", ("q",)), rules["gla"], (TINY,))
    assert found.verdict.where == "ModuleNotFoundError: No module named 'no_such_module'"


def shared(peer: Peer, parts: int) -> list[list[tuple[int, int]]]:
    """Batch and heads that each process meets."""
    cases = cases_of(Asked(("8x40", "2x160", "1x320", "1x80", "8x40x4"), heads=16), TINY)
    shares = [ahead._cases_of(peer, cases, ahead.Share(part, parts)) for part in range(parts)]  # pyright: ignore[reportPrivateUsage]
    return [[(case.batch, case.heads) for case in share] for share in shares]


def test_every_process_meets_all_heads_of_a_tuned_peer() -> None:
    """First those that are timed first; batch sizes beyond those are met by one."""
    first, second = shared(peer_of("kda"), 2)
    assert first[:2] == second[:2] == [(8, 16), (8, 4)]
    assert sorted(first[2:] + second[2:] + first[:2]) == [(1, 16), (2, 16), (8, 4), (8, 16)]


def test_one_process_meets_each_size_of_a_peer_that_is_not_tuned() -> None:
    met = [size for share in shared(peer_of("gated_delta_net", "flash-qla"), 3) for size in share]
    assert sorted(met) == [(1, 16), (2, 16), (8, 4), (8, 16)]


class Variant:
    """A configuration of an autotuner; even ones cannot be launched."""

    def __init__(self, number: int) -> None:
        self.number = number

    def all_kwargs(self) -> dict[str, int]:
        return {"number": self.number}


class Kernel:
    """Notes what it compiled and what it ran."""

    def __init__(self) -> None:
        self.compiled: list[int] = []
        self.ran: list[int] = []

    def run(self, *, number: int, warmup: bool, size: int) -> str:
        if warmup:
            self.compiled.append(number)
            return "compiled"
        if number % 2 == 0:
            raise RuntimeError("out of resources")
        self.ran.append(number)
        return "ran"


class Tuner:
    """What an autotuner has."""

    arg_names: tuple[str, ...] = ()
    keys = ("size",)

    def __init__(self) -> None:
        self.fn, self.base_fn = Kernel(), refuses
        self.configs = [Variant(number) for number in range(6)]

    def prune_configs(self, kwargs: dict[str, int]) -> list[Variant]:
        return self.configs[:5]

    def run(self, **kwargs: object) -> object:
        raise AssertionError("replaced")


def test_a_share_of_the_variants_is_compiled_and_one_that_can_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("triton.runtime.autotuner")
    vars(module)["Autotuner"] = Tuner
    monkeypatch.setitem(sys.modules, "triton.runtime.autotuner", module)
    ahead._share_variants(ahead.Share(0, 2))  # pyright: ignore[reportPrivateUsage]
    tuner = Tuner()
    assert [tuner.run(size=size, warmup=False) for size in (1, 1, 2)] == ["ran"] * 3
    assert tuner.fn.compiled == [0, 2, 4] * 2 and tuner.fn.ran == [1] * 3


@pytest.mark.parametrize(("cores", "processes"), [(1, 2), (5, 4), (16, 6)])
def test_sizes_of_ours_are_shared_out_among_the_cores(
    cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rules at three sizes, no peers: every rule meets every size once, one after another where cores are few."""
    started: list[tuple[Rule, tuple[Case, ...]]] = []

    class Done:
        def result(self) -> None:
            return None

    def begin(function: Callable[..., object], work: tuple[Rule, tuple[Case, ...]]) -> Done:
        started.append(work)
        return Done()

    monkeypatch.setattr(ahead, "start", begin)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    sizes = tuple(replace(TINY, heads=heads) for heads in (1, 2, 4))
    assert ahead.compile_ahead([rules["linear"], rules["kda"]], [], sizes) == ()
    met = sorted((rule.name, case.heads) for rule, cases in started for case in cases)
    assert met == [(name, heads) for name in ("kda", "linear") for heads in (1, 2, 4)]
    assert len(started) == processes


def test_rules_are_timed_alone_and_peers_after_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is compiled first and launches are counted last; the control alone has no peers and no first calls."""
    order: list[str] = []
    on_cuda = replace(TINY, device=torch.device("cuda"))

    def compiled(every: Sequence[Rule], jobs: Sequence[tuple[Peer, Rule]], cases: Sequence[Case]) -> tuple[str, ...]:
        order.append(f"compile {[rule.name for rule in every]} {[peer.function for peer, _ in jobs]}")
        return ("a note",)

    def ours(rule: Rule, cases: Sequence[Case]) -> tuple[Measured, ...]:
        order.append(rule.name)
        return without_speed(rule, Role.OURS, "archsearch", cases, "not run")

    def theirs(peer: Peer, rule: Rule, cases: Sequence[Case]) -> tuple[Measured, ...]:
        order.append(f"{peer.function} beside {rule.name}")
        return without_speed(rule, peer.role, "peer", cases, "not run")

    def first(rule: Rule, case: Case) -> Cold:
        order.append(f"first calls of {rule.name}")
        return Cold(rule.name, case, Broken("not run"), Broken("not run"))

    def counted(rule: Rule, measured: Sequence[Measured]) -> tuple[Measured, ...]:
        order.append(f"count {rule.name}")
        return tuple(measured)

    for name, stand_in in [
        ("compile_ahead", compiled),
        ("measure_rule", ours),
        ("measure_apart", theirs),
        ("measure_cold", first),
        ("count_ours", counted),
    ]:
        monkeypatch.setattr(f"archsearch.kernels.bench.run.{name}", stand_in)
    monkeypatch.setattr(peers, "_installed", lambda peer: True)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(peers, "version", version_of)
    asked = [rules["kda"], rules["linear"]]
    start_from = Benched("archsearch bench", (on_cuda,))
    found = list(run(asked, rules["gated_delta_net"], start_from, peers=True, cold=True, status=nullcontext))[-1]
    assert order == [
        "compile ['gated_delta_net', 'kda', 'linear'] ['chunk_kda']",
        "gated_delta_net",
        "kda",
        "first calls of kda",
        "chunk_kda beside kda",
        "linear",
        "first calls of linear",
        *(f"count {name}" for name in ("gated_delta_net", "kda", "linear")),
    ]
    assert [(each.rule, each.role) for each in found.measured] == [
        ("gated_delta_net", Role.OURS),
        ("kda", Role.OURS),
        ("kda", Role.PEER),
        ("linear", Role.OURS),
    ]
    assert found.notes == ("a note",) and len(found.cold) == 2
