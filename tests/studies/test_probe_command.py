"""`archsearch probe`: numbers and a page from a trial and from an export; a mistake is one line, nothing written."""

import json
import math
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archsearch.cli import main
from archsearch.mixers.export.export import export_module
from archsearch.mixers.export.module import Module
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import Model
from archsearch.mixers.probes.quantities import Name
from archsearch.mixers.zoo import rules
from archsearch.studies.engine.single import read_trial, run_trial
from archsearch.studies.export import export_and_check

CONFIG = """
rule: {rule}
model: {{width: 16, heads: 1, layers: 2, pattern: [{pattern}]}}
tasks:
  {tasks}
training: {{batch_tokens: 64}}
evaluations: 1
device: cpu
directory: {directory}
"""
MQAR = "mqar: {length: 32, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 128}"


def trained(home: Path, name: str, tasks: str, pattern: str = "rule, attention", rule: str = "eda") -> Path:
    """A trial of a few steps, in a directory of its own."""
    directory, config = home / name, home / f"{name}.yaml"
    text = CONFIG.format(rule=rule, pattern=pattern, tasks=tasks, directory=directory)
    config.write_text(text, encoding="utf-8")
    run_trial(read_trial(config), lambda tokens: nullcontext(), lambda line: None)
    return directory


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """trial/ reads bytes, symbols/ reads recall, exported/ is the first of them."""
    home = tmp_path_factory.mktemp("home")
    (home / "text").mkdir()
    for i in range(6):
        (home / "text" / f"{i}.txt").write_text(f"the {i}th state forgets and the {i}th key remembers\n" * 24)
    trained(home, "trial", f"text: {{corpus: {home}/text, length: 32, tokens: 128}}")
    trained(home, "symbols", MQAR, "rule")
    with pytest.MonkeyPatch.context() as patch:  # what an export proves of itself is tested beside it
        patch.setattr("archsearch.studies.export.run_selftest", lambda path: None)
        export_and_check(home / "trial", home / "exported")
    return home


def probe(*arguments: object) -> None:
    """A command line that succeeds."""
    with pytest.raises(SystemExit) as left:
        main(["probe", *map(str, arguments)])
    assert left.value.code == 0


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line on stderr of a command that exits with 2."""
    with pytest.raises(SystemExit) as left:
        main(["probe", *map(str, arguments)])
    said = capsys.readouterr()
    assert (left.value.code, said.out) == (2, "") and said.err.count("\n") == 1
    return said.err.rstrip("\n")


def numbers(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "probe.json").read_text(encoding="utf-8"))


def test_a_trial_is_probed_on_its_held_out_text(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe(home / "trial", "--out", tmp_path / "deep" / "out")
    said, found = capsys.readouterr().out, numbers(tmp_path / "deep" / "out")
    assert sorted(path.name for path in (tmp_path / "deep" / "out").iterdir()) == ["index.html", "probe.json"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert f"Next: open {tmp_path}/deep/out/index.html" in said and "layer 0" in said
    assert found["rule"].startswith("Rule(") and found["text"].startswith("held-out text of its task")
    assert [layer["layer"] for layer in found["layers"]] == [0]  # the other layer is attention
    assert {each["name"] for each in found["layers"][0]["quantities"]} == {name.value for name in Name}
    assert [len(sequence) for sequence in found["tokens"]] == [32] * 4
    assert all(sequence[0] == 256 and max(sequence[1:]) < 256 for sequence in found["tokens"])


def test_an_export_reads_a_file_and_says_what_its_trial_says(home: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"a key that was written long ago is read once more; " * 20)
    probe(home / "exported", "--text", text, "--out", tmp_path / "exported")
    probe(home / "trial", "--text", text, "--out", tmp_path / "trial")
    exported, trial = numbers(tmp_path / "exported"), numbers(tmp_path / "trial")
    assert exported["layers"] == trial["layers"] and exported["rule_hash"] == trial["rule_hash"]
    assert exported["text"] == f"{text}, 4 windows of 255 bytes"


def test_an_export_without_a_text_reads_the_standard_library(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archsearch.studies.probe.LENGTH", 64)
    probe(home / "exported")
    assert numbers(home / "exported-probe")["text"].startswith("held-out files of Python's standard library")


def test_a_trial_of_symbols_is_probed_beside_itself(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe(home / "symbols")
    found = numbers(home / "symbols-probe")
    assert [layer["layer"] for layer in found["layers"]] == [0, 1]
    assert found["text"] == "sequences of mqar, drawn with a seed of their own"
    page = (home / "symbols-probe" / "index.html").read_text(encoding="utf-8")
    assert ": symbol " in page


def test_the_page_tells_of_every_quantity_and_needs_no_network(home: Path, tmp_path: Path) -> None:
    probe(home / "trial", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles[:2] == ["The model", "Contraction"] and len(titles) == 1 + len(Name)
    assert page.count("<svg") >= 12 and "nan" not in page.lower().replace("nanm", "")
    assert not re.search(r"(src|href)=|url\(|@import", page)
    found = next(each for each in numbers(tmp_path / "out")["layers"][0]["quantities"] if each["name"] == "contraction")
    (mean,) = found["figures"]["mean"]
    assert math.isfinite(mean) and f"{mean:.4g}" in page


def test_what_a_rule_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trial = trained(tmp_path, "plain", MQAR, "rule", rule="linear")
    probe(trial)
    said = capsys.readouterr().out
    assert "no contraction: no row recalls what it overwrites" in said and "no memory_length: nothing decays" in said
    found = numbers(tmp_path / "plain-probe")["layers"][0]
    assert set(found["left_out"]) == {"contraction", "drift", "gate_shares", "collateral", "memory_length"}
    assert not {each["name"] for each in found["quantities"]} & set(found["left_out"])
    page = (tmp_path / "plain-probe" / "index.html").read_text(encoding="utf-8")
    assert "<h2>Left out</h2>" in page and "<h2>Contraction</h2>" not in page


def test_bad_input_gets_one_line_and_writes_nothing(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, out = tmp_path / "short.txt", tmp_path / "out"
    short.write_bytes(b"x" * 255)
    trial, exported, symbols = home / "trial", home / "exported", home / "symbols"
    reads = "a probe reads the directory of an exported module, a trial or a study"
    for arguments, words in (
        ((tmp_path / "lost",), f"{reads}; {tmp_path}/lost does not exist"),
        ((home / "text",), f"{reads}; {home}/text is none of them"),
        ((short,), f"{reads}; {short} is none of them"),
        ((trial, "--text", tmp_path / "lost.txt"), f"the text {tmp_path}/lost.txt cannot be read: No such file or"),
        ((trial, "--text", tmp_path), f"the text {tmp_path} is no file; give one"),
        ((exported, "--text", short), f"a probe needs a text of at least 256 bytes; {short} has 255: give a longer"),
        ((symbols, "--text", short), "a probe needs a text of at least 256 bytes"),
        ((symbols, "--text", home / "trial.yaml"), "--text is for models of bytes, with a vocabulary of 257; "),
    ):
        said = refusal(capsys, *arguments, "--out", out)
        assert said.startswith("ProbeError: ") and words in said, said
    assert f"{exported} exists: choose another with --out" in refusal(capsys, trial, "--out", exported)
    assert "does not let it: choose another" in refusal(capsys, trial, "--out", short / "below")
    assert sorted(tmp_path.iterdir()) == [short]


def test_models_that_cannot_be_probed_are_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = trained(tmp_path, "plain", MQAR, "attention")
    made = Module("made", rules["kda"], Layer(), 16, 1, Model(width=16, heads=1, layers=1), vocabulary=16)
    for name, module in (("symbols", made), ("alone", replace(made, model=None, vocabulary=0))):
        export_module(module, module.build("torch").state_dict(), tmp_path / name)
    before = sorted(tmp_path.iterdir())
    assert "a probe needs a layer of the rule" in refusal(capsys, plain)
    assert "probe its trial's directory" in refusal(capsys, tmp_path / "symbols")
    said = refusal(capsys, tmp_path / "symbols", "--text", home / "text" / "0.txt")
    assert "it knows 16 symbols. Leave it out" in said
    assert "is a layer alone: export a trial" in refusal(capsys, tmp_path / "alone")
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_source_is_named(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = home / "exported" / "model.safetensors"
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    said = refusal(capsys, home / "exported", "--out", tmp_path / "out")
    weights.write_bytes(kept)
    assert said.startswith(f"ExportError: {weights} was changed after the export")
    (home / "symbols" / "checkpoint" / "latest.json").rename(home / "kept.json")
    said = refusal(capsys, home / "symbols", "--out", tmp_path / "out")
    (home / "kept.json").rename(home / "symbols" / "checkpoint" / "latest.json")
    assert said.startswith("CheckpointError: ") and "holds no checkpoint" in said
    assert list(tmp_path.iterdir()) == []
