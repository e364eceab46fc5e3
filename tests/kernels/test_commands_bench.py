"""`archsearch bench`: no speed without right values; sizes that were asked for; numbers a program can read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archsearch.cli import main
from archsearch.errors import ConfigError
from archsearch.kernels import chunkwise, commands
from archsearch.kernels.bench import case as cases
from archsearch.kernels.bench import measure
from archsearch.kernels.bench.case import Asked, Case, cases_of, same_layer
from archsearch.kernels.bench.cold import FirstCall, measure_cold
from archsearch.kernels.bench.measure import Role, inputs_of, measure_rule
from archsearch.kernels.bench.report import Benched
from archsearch.kernels.bench.values import agrees_at, forward_of
from archsearch.kernels.call import Call, Result
from archsearch.kernels.dispatch import compile
from archsearch.lowering import NormalForm
from archsearch.mixers.zoo import rules

TINY = Case(torch.device("cpu"), torch.float32, batch=2, tokens=300, heads=2, key_dim=8, value_dim=8, step_batch=3)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "case_here", lambda: TINY)
    monkeypatch.setattr("archsearch.kernels.bench.timing.SECONDS", 0.0)


@pytest.fixture
def a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch form with a trace of the last token in every output."""
    sound = chunkwise.run

    def run(form: NormalForm, call: Call, chunk_size: int | None) -> Result:
        output, state = sound(form, call, chunk_size)
        return Result(output + 1e-2 * output[:, -1:] if output.shape[1] else output, state)

    monkeypatch.setattr(chunkwise, "run", run)


def bench(*names: str, asked: Asked | None = None, json: bool = False, save_to: Path | None = None) -> Benched:
    """The command, with the control that the command line gives it."""
    found = [rules[name] for name in names]
    return commands.bench(found, control=rules["gated_delta_net"], asked=asked, json=json, save_to=save_to)


def test_each_part_is_timed() -> None:
    (measured,) = measure_rule(rules["q_delta"], (TINY,))
    assert [timing.part for timing in measured.timings] == ["forward", "forward + backward", "step, batch 3"]
    assert all(timing.seconds > 0 and timing.first_seconds > 0 for timing in measured.timings)
    assert measured.timings[0].tokens_per_second == pytest.approx(600 / measured.timings[0].seconds)
    assert measured.path == "archsearch, torch"


def test_a_step_is_timed_once_a_layer() -> None:
    more = cases_of(Asked(("1x20", "2x10", "1x20x4")), TINY)
    parts = [[timing.part for timing in each.timings] for each in measure_rule(rules["linear"], more)]
    assert ["step, batch 3" in each for each in parts] == [True, False, True]


@pytest.mark.usefixtures("a_leak")
def test_a_rule_with_wrong_values_gets_no_speed(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench("linear")
    assert not found.passed and all(each.timings == () for each in found.measured)
    assert "linear (archsearch, torch) at B 2 x T 300" in capsys.readouterr().out


@pytest.mark.usefixtures("a_leak")
def test_wrong_values_end_with_1() -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "linear"])
    assert left.value.code == 1


def test_values_are_checked_at_the_size_that_is_timed() -> None:
    """A fault in the last head of the last sequence alone, as a wrong configuration of a large grid makes it."""
    rule, inputs = rules["gated_delta_net"], inputs_of(rules["gated_delta_net"], TINY)
    sound = forward_of(compile(rule))

    def faulty(tensors: Mapping[str, Tensor]) -> Tensor:
        factor = torch.ones(2, 1, 2, 1)
        factor[-1, :, -1] = 1.001
        return sound(tensors) * factor

    assert agrees_at(sound, rule, inputs, TINY).passed
    assert not agrees_at(faulty, rule, inputs, TINY).passed
    assert not agrees_at(faulty, rule, inputs, TINY, gradients=False).passed


def test_a_wrong_gradient_is_no_right_value() -> None:
    rule, inputs = rules["gated_delta_net"], inputs_of(rules["gated_delta_net"], TINY)
    sound = forward_of(compile(rule))

    def faulty(tensors: Mapping[str, Tensor]) -> Tensor:
        half = {**tensors, "beta": 0.5 * tensors["beta"] + 0.5 * tensors["beta"].detach()}
        return sound(half)

    assert agrees_at(faulty, rule, inputs, TINY, gradients=False).passed
    verdict = agrees_at(faulty, rule, inputs, TINY)
    assert not verdict.passed and verdict.where.startswith("gradient of beta")


def test_a_rule_that_raises_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(form: NormalForm, call: Call, chunk_size: int | None) -> Result:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(chunkwise, "run", run)
    assert not bench("linear").passed
    assert "no speed, RuntimeError: out of memory" in capsys.readouterr().out


def test_the_control_is_always_timed_first() -> None:
    small = Asked(("1x20",))
    assert [each.rule for each in bench("linear", asked=small).measured] == ["gated_delta_net", "linear"]
    both = bench("linear", "gated_delta_net", asked=small).measured
    assert [each.rule for each in both] == ["gated_delta_net", "linear"]


def test_json_is_plain_data(capsys: pytest.CaptureFixture[str]) -> None:
    found = bench("linear", asked=Asked(("1x20", "2x30x3")), json=True)
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(json.dumps(found.as_json()))
    assert [(each["rule"], each["case"]["batch"], each["case"]["heads"]) for each in said["measured"]] == [
        ("gated_delta_net", 1, 2),
        ("gated_delta_net", 2, 3),
        ("linear", 1, 2),
        ("linear", 2, 3),
    ]
    assert said["notes"] == ["peers run on a CUDA device only"]
    assert {"date", "command", "machine", "versions"} < set(said)
    assert all(each["verdict"]["passed"] and each["role"] == "ours" for each in said["measured"])


def test_what_was_found_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "found.json"
    found = bench("linear", asked=Asked(("1x20",)), save_to=target)
    assert json.loads(target.read_text()) == json.loads(json.dumps(found.as_json()))
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]
    assert "B 1 x T 20" in capsys.readouterr().out


def test_nowhere_to_save_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        bench("linear", save_to=tmp_path / "none" / "found.json")
    directory = tmp_path / "none"
    assert str(refused.value) == (
        f"--save needs a directory that exists; got {directory / 'found.json'}. Make {directory} first"
    )


def test_sizes_are_those_that_were_asked_for() -> None:
    asked = Asked(("8x4096", "8X4096x4", "8x4096x2"), heads=2, key_dim=64, value_dim=32, dtype="bfloat16")
    first, second = cases_of(asked, TINY)
    assert (first.batch, first.tokens, first.heads, first.key_dim, first.value_dim) == (8, 4096, 2, 64, 32)
    assert first.dtype == torch.bfloat16 and second.heads == 4
    assert cases_of(Asked(), TINY) == (TINY,)
    assert same_layer(cases_of(Asked(("1x2", "3x4", "1x2x5")), TINY)) == cases_of(Asked(("1x2", "1x2x5")), TINY)


@pytest.mark.parametrize("shape", ["4096", "8x", "0x4096", "8x4096x16x2", "8 by 4096", "-1x2"])
def test_a_shape_that_is_none_is_refused(shape: str) -> None:
    with pytest.raises(ConfigError) as refused:
        cases_of(Asked((shape,)), TINY)
    assert str(refused.value) == (
        f"--shape must be BATCHxTOKENS or BATCHxTOKENSxHEADS, each at least 1; got {shape!r}. Write --shape 8x4096"
    )


def test_a_size_or_dtype_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as size:
        cases_of(Asked(key_dim=0), TINY)
    assert str(size.value) == "--key-dim must be at least 1; got 0. Leave it out for 8"
    with pytest.raises(ConfigError) as dtype:
        cases_of(Asked(dtype="int8"), TINY)
    assert str(dtype.value) == "--dtype must be one of float64, float32, bfloat16, float16; got 'int8'"


def test_longer_sequences_repeat_what_was_drawn() -> None:
    inputs = inputs_of(rules["gated_delta_net"], TINY)
    k = inputs.tensors["k"]
    assert k.shape == (2, 300, 2, 8) and inputs.output_slope.shape == (2, 300, 2, 8)
    assert torch.equal(k[0], k[1]) and torch.equal(k[:, :44], k[:, 256:])
    assert k.is_contiguous()


def test_first_calls_are_measured_in_processes_of_their_own() -> None:
    found = measure_cold(rules["linear"], TINY)
    assert isinstance(found.empty, FirstCall) and isinstance(found.filled, FirstCall)
    assert found.empty.call > 0 and found.filled.call > 0


def test_all_that_is_ours_decides_the_exit_code() -> None:
    assert all(each.role is Role.OURS for each in bench("linear", asked=Asked(("1x20",))).measured)


def test_launches_are_counted_where_there_was_a_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Callable[[], object]] = []

    def seven(call: Callable[[], object], device: torch.device) -> int:
        called.append(call)
        return 7

    monkeypatch.setattr(measure, "launches", seven)
    timed = measure_rule(rules["linear"], (TINY,))
    red = replace(timed[0], timings=())
    counted = measure.count_ours(rules["linear"], (*timed, red))
    assert [timing.launches for timing in counted[0].timings] == [7, 7, 7] and len(called) == 3
    assert counted[1] == red
