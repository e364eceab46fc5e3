"""A trained model and a text, brought together for a probe: from an exported module, a trial, or a study's winner."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import cast

import torch
from torch import Tensor

from archsearch.errors import ProbeError
from archsearch.mixers.export.configuration import FILE, read_configuration
from archsearch.mixers.export.load import load
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.probes.page import build_page
from archsearch.mixers.probes.probe import LayerProbe, Samples, mixers_of, probe_model
from archsearch.mixers.probes.report import Probed
from archsearch.studies.evidence.winner import find_winner
from archsearch.studies.export import TEXT
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory, TrialDirectory
from archsearch.studies.tasks.corpus import Document, read_corpus
from archsearch.studies.tasks.sources import PYTHON, find_source
from archsearch.studies.tasks.task import Part
from archsearch.studies.tasks.text import START, Text
from archsearch.studies.training.config import TrialConfig
from archsearch.studies.training.language import load_model
from archsearch.studies.workers.body import trial_config
from archsearch.typed_data import from_plain

SEQUENCES = 4
LENGTH = 1024
LEAST = 64
"""Sequences of a probe, their length where the text and the task have so much, and the shortest allowed."""
HELD_OUT_BYTES = 65536
"""Of the text that an exported module reads where none is given."""
BYTES = Text.vocabulary


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model reads: tokens int64 [B, T], whether they are bytes, and what they are in words."""

    tokens: Tensor
    bytes: bool
    description: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A trained model and the text that it reads. why: how the trial of a study was chosen; empty for other sources."""

    source: str
    model: LanguageModel
    reading: Reading
    why: str = ""


def find_subject(source: Path, text: Path | None) -> Subject:
    """The model at `source` (an exported module, a trial, or a study, whose winner it is) with `text` or held-out data.

    Errors: ProbeError for a source that is none, a model that does not read bytes where a text is given, a text that is
    missing or too short; ExportError, StudyError, CheckpointError for a damaged source.
    """
    given = None if text is None else _of_file(text)
    if (source / FILE).is_file():
        return _of_export(source, given)
    trial, config, why = _trial(source)
    chosen = config.tasks.chosen
    task = TEXT if TEXT in chosen else next(iter(chosen))
    if given is not None and task != TEXT:
        raise _no_bytes(source, f"its tasks are {', '.join(chosen)}")
    reading = given or _of_task(config, task)
    vocabulary = BYTES if task == TEXT else chosen[task].build().vocabulary
    portable = replace(config, backend="torch", memory="fast")
    return replace(_subject(str(source), load_model(portable, trial.checkpoints, task, vocabulary), reading), why=why)


def probe_subject(subject: Subject, announce: Callable[[LayerProbe], None]) -> Probed:
    """Every quantity of every layer; announce: told of each layer when it is done."""
    samples, layers = Samples(), list[LayerProbe]()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one token at a time: its products are too small to be shared out
    try:
        for layer in probe_model(subject.model, subject.reading.tokens, samples):
            layers.append(layer)
            announce(layer)
    finally:
        torch.set_num_threads(threads)
    tokens = cast(list[list[int]], subject.reading.tokens.tolist())
    return Probed(
        source=subject.source,
        rule=subject.model.rule,
        text=subject.reading.description,
        tokens=tokens,
        bytes=subject.reading.bytes,
        samples=samples,
        layers=layers,
    )


def write_probe(probed: Probed, target: Path) -> Path:
    """Write probe.json and index.html into a directory that must not exist yet; the page's path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        records.write_text(beside / "probe.json", probed.json())
        records.write_text(beside / "index.html", build_page(probed).html())
        beside.chmod(0o755)
        os.rename(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target / "index.html"


def target_of(source: Path, target: Path | None) -> Path:
    """Where a probe goes: beside its source where no target is given. ProbeError for one that exists or cannot be."""
    chosen = target or source.resolve().with_name(f"{source.resolve().name}-probe")
    if chosen.exists():
        raise ProbeError(f"a probe writes a directory of its own; {chosen} exists: choose another with --out")
    above = next(parent for parent in chosen.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ProbeError(f"a probe writes the directory {chosen}; {above} does not let it: choose another with --out")
    return chosen


def _of_export(source: Path, given: Reading | None) -> Subject:
    configuration = read_configuration(source)
    if configuration.model is None:
        raise ProbeError(f"a probe needs a language model; {source} is a layer alone: export a trial")
    if configuration.tokens != "bytes":
        if given is not None:
            raise _no_bytes(source, f"it knows {configuration.sizes['vocabulary']} symbols")
        raise ProbeError(f"{source} reads the symbols of a task, which no export holds: probe its trial's directory")
    model = load(source, backend="torch")
    if not isinstance(model, LanguageModel):
        raise ProbeError(f"a probe needs a language model; {source} holds a {type(model).__name__}")
    return _subject(str(source), model, given or _of_standard_library())


def _subject(source: str, model: LanguageModel, reading: Reading) -> Subject:
    if not mixers_of(model):
        raise ProbeError(
            f"a probe needs a layer of the rule; the model of {source} has none: its pattern leaves it out"
        )
    return Subject(source, model, reading)


def _trial(source: Path) -> tuple[TrialDirectory, TrialConfig, str]:
    """The trial that `source` means, whether it has ended or not; of a study also why that one."""
    study = StudyDirectory(source)
    if study.exists():
        winner = find_winner(study)
        if winner is None:
            raise ProbeError(f"a probe of a study reads its winner; {source} has no complete trial yet")
        trial = winner.directory.trial(winner.row.number)
        return trial, trial_config(winner.evidence.plan, trial), winner.why
    trial = TrialDirectory(source)
    above = StudyDirectory(source.absolute().parent.parent)
    if above.exists() and source.name.isdigit() and trial.proposal() is not None:
        return trial, trial_config(above.plan(), trial), ""
    proposal = trial.proposal()
    if proposal is None or "config" not in proposal:
        what = "is none of them" if source.exists() else "does not exist"
        raise ProbeError(f"a probe reads the directory of an exported module, a trial or a study; {source} {what}")
    return trial, from_plain(TrialConfig, proposal["config"], str(source / "trial.json")), ""


def _no_bytes(source: Path, why: str) -> ProbeError:
    return ProbeError(
        f"--text is for models of bytes, with a vocabulary of {BYTES}; {source} is none, {why}. Leave it out"
    )


def _of_file(path: Path) -> Reading:
    if path.exists() and not path.is_file():  # a device may have no end
        raise ProbeError(f"the text {path} is no file; give one")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ProbeError(f"the text {path} cannot be read: {error.strerror}; give another") from error
    return _windows(text, LENGTH, f"{path}")


def _of_task(config: TrialConfig, name: str) -> Reading:
    """Held-out documents of a text; of another task, sequences that no training saw."""
    task = config.tasks.chosen[name].build()
    if isinstance(task, Text):
        return _windows(_joined(task.documents(Part.VALIDATION)), min(LENGTH, task.length), "held-out text of its task")
    tokens = task.train_batch(config.seed + 1, 0, SEQUENCES).tokens[:, :LENGTH]
    return Reading(tokens, False, f"sequences of {name}, drawn with a seed of their own")


def _of_standard_library() -> Reading:
    documents = read_corpus(find_source(PYTHON, ""), 1, HELD_OUT_BYTES).validation
    return _windows(_joined(documents), LENGTH, "held-out files of Python's standard library")


def _joined(documents: tuple[Document, ...]) -> bytes:
    return b"".join(document.text for document in documents)


def _windows(text: bytes, length: int, name: str) -> Reading:
    """Windows of the text, evenly spaced, each behind the token before a first byte."""
    size = min(length, len(text) // SEQUENCES)
    if size < min(LEAST, length):
        least = SEQUENCES * min(LEAST, length)
        raise ProbeError(f"a probe needs a text of at least {least} bytes; {name} has {len(text)}: give a longer one")
    starts = [round(i * (len(text) - size) / (SEQUENCES - 1)) for i in range(SEQUENCES)]
    rows = [[START, *text[start : start + size - 1]] for start in starts]
    return Reading(torch.tensor(rows), True, f"{name}, {SEQUENCES} windows of {size} bytes")
