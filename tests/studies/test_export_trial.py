"""A trial leaves as a stand-alone module, from the command line, and every mistake is one line with nothing written."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

import archsearch
from archsearch.cli import main
from archsearch.errors import CheckpointError, ExportError, StudyError
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.studies.engine.single import read_trial, run_trial
from archsearch.studies.export import export_and_check, find_trained
from archsearch.studies.training.language import load_model

CONFIG = """
rule: eda_scalar
model: {{width: 16, heads: 1, layers: 6, pattern: [rule, attention, window, mla, mamba, griffin], window: 5,
  latent: {{rank: 6}}, mamba: {{state: 4}}, griffin: {{channels: 8}}}}
tasks:
  mqar: {{length: 16, pairs: 2, vocabulary: 16, evaluation: 8, tokens: 128}}
  text: {{corpus: {home}/text, length: 16, tokens: 128}}
training: {{batch_tokens: 64}}
evaluations: 1
device: cpu
directory: {home}/trial
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    (home / "text").mkdir()
    for i in range(6):
        (home / "text" / f"{i}.txt").write_text(f"the {i}th state forgets and the {i}th key remembers\n" * 12)
    (home / "trial.yaml").write_text(CONFIG.format(home=home))
    run_trial(read_trial(home / "trial.yaml"), lambda tokens: nullcontext(), lambda line: None)
    return home


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr of a command that exits with 2."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    said = capsys.readouterr().err
    assert left.value.code == 2 and said.count("\n") == 1
    return said


def test_a_trial_is_exported_loaded_and_speaks(home: Path, tmp_path: Path) -> None:
    path, report = export_and_check(home / "trial", tmp_path / "out")
    assert report.passed, "\n".join(report.lines)
    model = archsearch.load(path)
    assert isinstance(model, LanguageModel) and model.vocabulary == 257
    tokens = torch.randint(257, (1, 20))
    trained = load_model(find_trained(home / "trial").config, home / "trial" / "checkpoint", "text", 257)
    assert torch.equal(model(tokens), trained(tokens))
    card = (path / "README.md").read_text(encoding="utf-8")
    assert "bits_per_byte" in card and "this is the one of `text`" in card and "eda_scalar" in card


def test_the_command_refuses_what_it_cannot_do_in_one_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "out")
    assert "the directory of a study or of a trial" in refusal(["export", str(home / "text"), target], capsys)
    assert "must be a Python identifier" in refusal(["export", str(home / "trial"), target, "--name", "json"], capsys)
    assert not Path(target).exists()
    Path(target).mkdir()
    assert "the target must not exist" in refusal(["export", str(home / "trial"), target], capsys)
    assert list(tmp_path.iterdir()) == [Path(target)]


def test_an_unfinished_trial_and_a_damaged_checkpoint_are_refused(home: Path, tmp_path: Path) -> None:
    trial = home / "trial"
    for name, error, words in (
        ("result.json", ExportError, "needs a trial with its full budget"),
        ("trial.json", StudyError, "the directory of a study or of a trial"),
    ):
        kept = (trial / name).read_bytes()
        (trial / name).unlink()
        with pytest.raises(error, match=words):
            export_and_check(trial, tmp_path / "out")
        (trial / name).write_bytes(kept)
    (weights,) = (trial / "checkpoint").glob("*.safetensors")
    kept = weights.read_bytes()
    weights.write_bytes(kept[:-1] + b"?")
    with pytest.raises(CheckpointError, match=re.escape(str(weights))):
        export_and_check(trial, tmp_path / "out")
    weights.write_bytes(kept)
    assert list(tmp_path.iterdir()) == []
