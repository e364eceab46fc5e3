"""The exported directory: it proves itself without archsearch, loads back, and notices a changed byte."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import archsearch
from archsearch.errors import ExportError
from archsearch.mixers.export.check import run_selftest
from archsearch.mixers.export.export import export_module
from archsearch.mixers.export.load import load
from archsearch.mixers.export.module import Module, Origin
from archsearch.mixers.layer import options as o
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

LAYER = o.Layer(value_heads=4, conv=3, operands={"e": o.LowRank(4), "gamma": o.Sigmoid(bias=-2.0)})
MODEL = Model(width=32, heads=2, layers=3, pattern=("rule", "attention"), mlp_ratio=2)
SPEAKER = Module("speaker", rules["eda_q_delta"], LAYER, 32, 2, MODEL, vocabulary=257, text=True)
ALONE = Module("alone", rules["gla"], o.Layer(), 32, 2)
RESULTS = [{"variant": "this", "bits_per_byte": 2.25}, {"variant": "gated_delta_net", "bits_per_byte": 2.5}]
ORIGIN = Origin({"study": "quick", "number": 12, "choices": {"decay": "scalar"}}, RESULTS, "bytes of some files")
FILES = (
    "README.md",
    "config.json",
    "model.safetensors",
    "modeling_speaker.py",
    "selftest.py",
    "selftest.safetensors",
    "speaker.py",
    "tokenizer.json",
    "tokenizer_config.json",
)


def trained(module: Module) -> nn.Module:
    torch.manual_seed(3)
    made = module.build("torch").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model, exported once; tests that change it take a copy."""
    return export_module(SPEAKER, trained(SPEAKER).state_dict(), tmp_path_factory.mktemp("once") / "out", origin=ORIGIN)


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def changed(path: Path, change: Callable[[str], str]) -> None:
    before = path.read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    path.write_text(after, encoding="utf-8")


def test_selftest_passes_where_archsearch_is_not_installed(exported: Path, tmp_path: Path) -> None:
    for home in (exported, export_module(ALONE, trained(ALONE).state_dict(), tmp_path / "alone")):
        report = run_selftest(home)
        assert report.passed, "\n".join(report.lines)
        assert all(line.startswith("ok") for line in report.lines)
        assert len(report.lines) >= 17


def test_selftest_passes_without_triton_from_any_folder(exported: Path, tmp_path: Path) -> None:
    script = "import runpy, sys; sys.modules['triton'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    command = [sys.executable, "-I", "-B", "-c", script, str(exported / "selftest.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
def test_selftest_checks_the_kernels_on_a_gpu(exported: Path) -> None:
    report = run_selftest(exported)
    assert report.passed, "\n".join(report.lines)
    assert sum("triton" in line for line in report.lines) == 4


def test_selftest_cannot_import_archsearch(copied: Path) -> None:
    changed(copied / "selftest.py", lambda text: text.replace("import hashlib", "import archsearch\nimport hashlib", 1))
    report = run_selftest(copied)
    assert not report.passed
    assert "archsearch is not there" in report.lines[-1]


def test_selftest_sees_another_rule_and_other_weights(copied: Path) -> None:
    changed(copied / "speaker.py", lambda text: text.replace("target - recall(state, residual)", "target", 1))
    weights = (copied / "model.safetensors").read_bytes()
    (copied / "model.safetensors").write_bytes(weights[:-400] + bytes(400))
    report = run_selftest(copied)
    failed = [line for line in report.lines if line.startswith("FAIL")]
    assert not report.passed
    for what in ("hash of speaker.py", "hash of model.safetensors", "reference, chunks of 16", "trained module:"):
        assert any(what in line for line in failed), what


@pytest.mark.parametrize("name", ["model.safetensors", "selftest.safetensors"])
def test_selftest_tells_of_a_file_cut_short_and_of_a_lost_one(copied: Path, name: str) -> None:
    for content in ((copied / name).read_bytes()[:100], None):
        (copied / name).unlink()
        if content is not None:
            (copied / name).write_bytes(content)
        report = run_selftest(copied)
        assert not report.passed
        assert any(line.startswith(f"FAIL  hash of {name}") for line in report.lines)
        assert any(line.startswith("FAIL  the rest was not checked") for line in report.lines)
        assert not any("Traceback" in line for line in report.lines)


def test_overwrite_spares_a_model_of_another_origin(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "other"}', encoding="utf-8")
    with pytest.raises(ExportError, match="--overwrite replaces an earlier export"):
        export_module(ALONE, trained(ALONE).state_dict(), tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_load_gives_the_same_outputs(exported: Path, tmp_path: Path) -> None:
    tokens = torch.randint(257, (2, 30))
    assert torch.equal(archsearch.load(exported)(tokens), trained(SPEAKER)(tokens))
    home = export_module(ALONE, trained(ALONE).state_dict(), tmp_path / "alone")
    x = torch.randn(2, 30, 32)
    assert torch.equal(load(home)(x), trained(ALONE)(x))
    assert not load(home).training


def test_load_runs_no_code_of_the_directory(exported: Path) -> None:
    load(exported)
    assert "speaker" not in sys.modules


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_byte_is_refused_by_name(name: str, exported: Path, tmp_path: Path) -> None:
    size = (exported / name).stat().st_size
    for place in (0, size // 3, size // 2, size - 2):
        home = Path(shutil.copytree(exported, tmp_path / f"{place}"))
        data = bytearray((home / name).read_bytes())
        data[place] ^= 1
        (home / name).write_bytes(data)
        with pytest.raises(ExportError, match=re.escape(str(home / name))):
            load(home)


def test_missing_file_is_refused_by_name(copied: Path) -> None:
    (copied / "speaker.py").unlink()
    with pytest.raises(ExportError, match=r"speaker\.py is missing"):
        load(copied)


def test_directory_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"is no exported module: it has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{\n  "model_type": "other"\n}\n', encoding="utf-8")
    with pytest.raises(ExportError, match="must hold the key archsearch"):
        load(tmp_path)


def test_unknown_key_names_the_nearest_and_other_versions_are_refused(copied: Path) -> None:
    path = copied / "config.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["archsearch"]["rule_hsah"] = ""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    with pytest.raises(ExportError, match=r"unknown key rule_hsah in .*config\.json; did you mean rule_hash"):
        load(copied)
    data["archsearch"]["schema_version"] = 2
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    with pytest.raises(ExportError, match="must have schema_version 1; got 2"):
        load(copied)


def test_configuration_is_plain_and_names_what_is_there(exported: Path) -> None:
    data = json.loads((exported / "config.json").read_text(encoding="utf-8"))
    ours = data["archsearch"]
    assert ours["rule_hash"] == SPEAKER.rule.hash
    assert ours["trial"]["number"] == 12
    assert set(ours["files"]) == set(FILES) - {"config.json"}
    assert sorted(path.name for path in exported.iterdir()) == sorted(FILES)
    assert ours["sizes"]["parameters"] == sum(each.numel() for each in trained(SPEAKER).parameters())


def test_target_that_exists_is_refused_and_left_alone(copied: Path, exported: Path) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with pytest.raises(ExportError, match="the target must not exist"):
        export_module(ALONE, trained(ALONE).state_dict(), copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


def test_overwrite_replaces_an_export_and_nothing_else(copied: Path, tmp_path: Path) -> None:
    export_module(ALONE, trained(ALONE).state_dict(), copied, overwrite=True)
    assert (copied / "alone.py").is_file()
    assert not (copied / "speaker.py").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(ExportError, match="--overwrite replaces an earlier export"):
        export_module(ALONE, trained(ALONE).state_dict(), precious, overwrite=True)
    assert (precious / "thesis.tex").exists()


def test_weights_of_another_module_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the weights must be those of the module"):
        export_module(ALONE, trained(SPEAKER).state_dict(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["torch", "json", "class", "two words", "selftest"])
def test_name_that_cannot_be_imported_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match=r"must be a Python identifier that no other module has.*--name"):
        replace(ALONE, name=name)


def test_every_snippet_of_the_card_runs(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = export_module(ALONE, trained(ALONE).state_dict(), tmp_path / "alone")
    for home, expected in ((exported, 4), (alone, 3)):
        with monkeypatch.context() as patched:
            patched.chdir(home)
            patched.syspath_prepend(str(home))
            card = (home / "README.md").read_text(encoding="utf-8")
            found = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
            snippets = [snippet for snippet in found if "transformers" not in snippet]
            assert len(snippets) == expected
            for snippet in snippets:
                exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out.startswith("def main(")
    for name in ("speaker", "alone"):
        sys.modules.pop(name, None)


def test_card_tells_what_is_known(exported: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    assert "Rule(" in card
    assert SPEAKER.rule.hash in card
    assert "| gated_delta_net | 2.5 |" in card
    assert "trust_remote_code" in card
    assert "bytes of some files" in card
    assert "$" not in re.sub(r"\$\$.*?\$\$", "", card, flags=re.DOTALL)
