"""`archsearch bench`: no speed without right values, ours or a peer's; numbers a program can read."""

import json
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from archsearch.cli import main
from archsearch.kernels import chunkwise, commands
from archsearch.kernels.bench import measure, peers
from archsearch.kernels.bench.measure import Case, inputs_of, measure_rule
from archsearch.kernels.bench.peers import measure_peer, why_no_peers
from archsearch.kernels.call import Call, Result
from archsearch.kernels.dispatch import compile
from archsearch.lowering import NormalForm
from archsearch.mixers.zoo import rules

TINY = Case(torch.device("cpu"), torch.float32, batch=2, tokens=300, heads=2, key_dim=8, value_dim=8, step_batch=3)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "case_here", lambda: TINY)
    monkeypatch.setattr("archsearch.kernels.bench.timing.SECONDS", 0.0)


@pytest.fixture
def a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch form with a trace of the last token in every output."""
    sound = chunkwise.run

    def run(form: NormalForm, call: Call, chunk_size: int | None) -> Result:
        output, state = sound(form, call, chunk_size)
        return Result(output + 1e-2 * output[:, -1:] if output.shape[1] else output, state)

    monkeypatch.setattr(chunkwise, "run", run)


def installed(monkeypatch: pytest.MonkeyPatch, function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """A stand-in for flash-linear-attention with one function."""
    module = ModuleType("fla.ops.gated_delta_rule")
    vars(module)["chunk_gated_delta_rule"] = function
    monkeypatch.setitem(sys.modules, "fla", ModuleType("fla"))
    monkeypatch.setitem(sys.modules, "fla.ops", ModuleType("fla.ops"))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", module)
    monkeypatch.setattr(peers, "version", lambda name: "0.0")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def stand_in(*, scale: float) -> Callable[..., tuple[Tensor, Tensor]]:
    def chunk_gated_delta_rule(
        *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, output_final_state: bool
    ) -> tuple[Tensor, Tensor]:
        result = compile(rules["gated_delta_net"])(q=q, k=k, v=v, g=g, beta=beta)
        return scale * result.output, result.state

    return chunk_gated_delta_rule


def test_each_part_is_timed() -> None:
    measured = measure_rule(rules["q_delta"], TINY)
    assert [timing.part for timing in measured.timings] == ["forward", "forward + backward", "step, batch 3"]
    assert all(timing.seconds > 0 and timing.first_seconds > 0 for timing in measured.timings)
    assert measured.timings[0].tokens_per_second == pytest.approx(600 / measured.timings[0].seconds)
    assert measured.path == "archsearch, torch"


@pytest.mark.usefixtures("a_leak")
def test_a_rule_with_wrong_values_gets_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands.bench([rules["linear"]], json=False)
    assert not found.passed and found.measured[0].timings == ()
    assert "linear (archsearch, torch): no speed, its values are wrong." in capsys.readouterr().out


@pytest.mark.usefixtures("a_leak")
def test_wrong_values_end_with_1() -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "linear"])
    assert left.value.code == 1


def test_json_is_plain_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands.bench([rules["linear"], rules["delta_net"]], json=True)
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(json.dumps(found.as_json()))
    assert [each["rule"] for each in said["measured"]] == ["linear", "delta_net"]
    assert said["case"]["dtype"] == "torch.float32" and said["note"] == "peers run on a CUDA device only"
    assert all(each["verdict"]["passed"] for each in said["measured"])


def test_longer_sequences_repeat_what_was_drawn() -> None:
    inputs = inputs_of(rules["gated_delta_net"], TINY)
    k = inputs.tensors["k"]
    assert k.shape == (2, 300, 2, 8) and inputs.output_slope.shape == (2, 300, 2, 8)
    assert torch.equal(k[0], k[1]) and torch.equal(k[:, :44], k[:, 256:])
    assert k.is_contiguous()


def test_a_peer_is_timed_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, stand_in(scale=1.0))
    found = measure_peer(rules["gated_delta_net"], TINY)
    assert found is not None and found.verdict.passed
    assert found.path.startswith("fla 0.0, chunk_gated_delta_rule")
    assert [timing.part for timing in found.timings] == ["forward", "forward + backward"]


def test_a_peer_with_other_values_gets_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, stand_in(scale=1.01))
    found = measure_peer(rules["gated_delta_net"], TINY)
    assert found is not None and not found.verdict.passed and found.timings == ()


def test_a_peer_that_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, refuses)
    found = measure_peer(rules["gated_delta_net"], TINY)
    assert found is not None and found.timings == ()
    assert found.verdict.where == "RuntimeError: not on this card"


def refuses(**operands: Tensor) -> tuple[Tensor, Tensor]:
    raise RuntimeError("not on this card")


def test_a_rule_without_a_peer_has_none() -> None:
    assert measure_peer(rules["eda"], TINY) is None
    assert why_no_peers(TINY) == "peers run on a CUDA device only"
