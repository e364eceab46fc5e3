"""The commands of this floor as plain functions, those that read a study apart: they run, end and hand out studies and
trials, and print.
"""

import contextlib
import dataclasses
import json as jsonlib
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from shlex import quote

from rich.console import Console

from archsearch.errors import (
    ArchsearchError,
    ClusterLostError,
    ConfigError,
    DiskFullError,
    StudyError,
    StudyLockedError,
)
from archsearch.mixers.probes.probe import LayerProbe
from archsearch.mixers.probes.quantities import Name
from archsearch.report.words import counted
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.engine.checking import check_study
from archsearch.studies.engine.run import run_study
from archsearch.studies.engine.session import force_unlocking
from archsearch.studies.engine.single import read_trial, run_trial
from archsearch.studies.evidence.aa import Setting, simulate
from archsearch.studies.evidence.conclusions import conclude
from archsearch.studies.evidence.finals import aa_config, check_alone, finals_config
from archsearch.studies.evidence.pool import FIGURES_FILE, SEEDS_FILE, pool_of, read_pool, write_figures
from archsearch.studies.evidence.rows import read_evidence
from archsearch.studies.evidence.status import ended, read_status, wanted_of
from archsearch.studies.evidence.winner import finals_of, find_winner
from archsearch.studies.export import export_and_check
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import is_held, slow_to_leave
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.probe import find_subject, probe_subject, target_of, write_probe
from archsearch.studies.reading import console, next_of, print_conclusions, print_ranking
from archsearch.studies.report.caveats import aa_lines
from archsearch.studies.report.check_page import print_check
from archsearch.studies.report.live import SECONDS_BETWEEN_LOOKS, minutes
from archsearch.studies.report.study_page import write_report
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.progress import shown_progress

SECONDS_BETWEEN_LINES = 20.0
"""Between two lines of progress."""

SECONDS_BEFORE_WORDS = 30.0
"""That a driver has to stop before it is told what is waited for."""

FINDINGS = (
    (Name.CONTRACTION, "mean", "step"),
    (Name.READOUT, "mean", "readout cosine"),
    (Name.READABILITY, "lost_at_the_end", "lost"),
    (Name.TRANSITION, "norm_most", "transition norm"),
    (Name.HEALTH, "effective_rank_last", "effective rank"),
)
"""Figures that a terminal shows of a probed layer: quantity, figure, what it is called."""


def run(source: str, overrides: Sequence[str], imported: str | None = None) -> None:
    """Create the study that a YAML file asks for, or go on with it or with a directory's; then rank, report, export.

    imported: the directory of an older study, whose trials count where they can.
    """
    if (Path(source) / "study.json").exists():
        if imported is not None:
            raise StudyError(f"--import is for a study that begins; {source} has begun: leave it out")
        resume(source, overrides)
        return
    with asked_in(source):
        config = read_config(StudyConfig, Path(source), overrides)
        _carry_out(config if imported is None else dataclasses.replace(config, imported=Path(imported)))


def resume(directory: str, overrides: Sequence[str], *, force_unlock: bool = False) -> None:
    """Go on with the study in `directory`; overrides may change what is no part of its question, as trials=40.

    force_unlock: take it from a driver that is not known to live.
    """
    with asked_in(directory):
        _carry_out(read_study_config(Path(directory), overrides), force_unlock=force_unlock)


@contextlib.contextmanager
def asked_in(source: str) -> Generator[None]:
    """A block that answers what a file, or a study's directory, asks; its refusals name where the question stands."""
    try:
        yield
    except ArchsearchError as error:
        said = str(error)
        if source in said or isinstance(error, StudyLockedError | ClusterLostError | DiskFullError):
            raise
        raise type(error)(f"{said} (in {source})") from error


def check(source: str, overrides: Sequence[str], *, points: int, json: bool) -> bool:
    """Print what the study that a YAML file, or a study's directory, asks for would do; whether all can be built."""
    path = Path(source)
    is_study = (path / "study.json").exists()
    config = read_study_config(path, overrides) if is_study else read_config(StudyConfig, path, overrides)
    with asked_in(source), Console(stderr=True).status("reading the data") as line:
        found = check_study(config, points, lambda name: line.update(f"building {name}"))
    print_check(found, source, console, json=json)
    return not found.bad and not found.over


def train(config: str, overrides: Sequence[str]) -> None:
    """Train the trial that a YAML file asks for, or go on with it; StudyError if it ends without its whole budget."""
    trial = read_trial(Path(config), overrides)
    with asked_in(config):
        result = run_trial(
            trial,
            lambda tokens: shown_progress(console, tokens),
            console.print,
            lambda: console.print(f"Trial in {trial.directory}: {trial.rule.splitlines()[0]}"),
        )
    if result.outcome is not Outcome.COMPLETE:
        raise StudyError(f"the trial in {trial.directory} ended as {result.outcome.value}: {result.message}")
    for name, task in trial.tasks.build().items():
        beside = "; ".join(f"{what} {value:.4g}" for what, value in task.baselines().items())
        console.print(f"{name}: {task.objective.name} {result.values[task.objective.name]:.4g} ({beside})")
    console.print(f"Next: archsearch export {quote(str(trial.directory))} exported")


def finals(directory: str, overrides: Sequence[str]) -> None:
    """Retrain the best of a finished search and its baselines on fresh seeds, or go on with that; then say who won.

    Of finals that have ended, asked for nothing new, the files say it: their data need not be here.
    """
    with asked_in(directory):
        config = finals_config(Path(directory), overrides)
        found = finals_of(StudyDirectory(Path(directory)))
        if found is not None and found.ended >= found.wanted and not overrides:
            _say_outcome(found.directory, config)
        else:
            _carry_out(config)


def aa(source: str, overrides: Sequence[str], *, setting: Setting, json: bool) -> None:
    """Train one rule on many seeds, or take seeds that were kept; draw studies from them and count false winners."""
    path = Path(source)
    if path.suffix == ".json":
        if overrides:
            raise ConfigError(f"kept seeds take no overrides; got {overrides[0]} beside {source}: leave it out")
        if path.name != SEEDS_FILE:
            raise ConfigError(f"kept seeds must lie in a file {SEEDS_FILE}, beside their figures; rename {source}")
        pool, home = read_pool(path), path.parent
    else:
        is_search = (path / "study.json").exists()
        config = aa_config(path, overrides) if is_search else read_config(StudyConfig, path, overrides)
        check_alone(config)
        directory = run_study(
            config,
            announce=_narrator(),
            on_begin=lambda: _introduce(config),
            on_look=_progress(config.directory),
        )
        pool, home = pool_of(read_evidence(directory)), directory.path
    drawn = simulate(pool.objectives, setting)
    write_figures(home, pool, drawn)
    if json:
        print(jsonlib.dumps(drawn.record(), indent=1))
        return
    for line in aa_lines(pool.rule, drawn):
        console.print(line)
    console.print(f"Kept: {home / SEEDS_FILE}, {home / FIGURES_FILE}")


def stop(directory: str, *, now: bool) -> None:
    """Have the driver end the study after the running trials' next checkpoints, or now; wait until it is gone."""
    home = StudyDirectory(Path(directory))
    home.plan()
    if not is_held(home.lock):
        console.print(f"No driver runs in {directory}. Go on with: archsearch study resume {quote(directory)}")
        return
    home.ask_to_stop(now=now)
    console.print("Asked to stop; the running trials go on to their next checkpoints." if not now else "Asked to stop.")
    began, told = time.monotonic(), False
    while is_held(home.lock):
        waited = time.monotonic() - began
        if waited > SECONDS_BEFORE_WORDS and not told:
            told = True
            again, taking = f"archsearch study stop --now {quote(directory)}", force_unlocking(home)
            console.print(slow_to_leave(home.lock, waited, now=now, stop=again, command=taking))
        time.sleep(SECONDS_BETWEEN_LOOKS)
    console.print(f"Stopped; nothing is lost. Go on with: archsearch study resume {quote(directory)}")


def export(source: str, target: str, *, overwrite: bool, name: str | None) -> None:
    """Write the model of a trial, or of a study's winner, as a stand-alone module, and run the module's own test."""
    home, checks = export_and_check(source, target, overwrite=overwrite, name=name, announce=console.print)
    if not checks.passed:
        raise RuntimeError("\n".join(["the exported module fails its own test:", *checks.lines]))
    console.print(f"Exported to {home}: {counted(len(checks.lines), 'check')} passed in a process without archsearch")
    place = quote(str(home))
    console.print(f"Next: cat {place}/README.md, or python {place}/selftest.py")


def probe(source: str, text: str | None, out: str | None) -> None:
    """Measure what the memory of a trained model does while it reads; write the numbers and a page."""
    target = target_of(Path(source), None if out is None else Path(out))
    subject = find_subject(Path(source), None if text is None else Path(text))
    if subject.why:
        console.print(subject.why)
    console.print(f"{subject.source} reads {subject.reading.description}")
    probed = probe_subject(subject, lambda layer: console.print(f"  layer {layer.index}: {_findings(layer)}"))
    page = write_probe(probed, target)
    for name, reason in probed.left_out().items():
        console.print(f"  no {name}: {reason}", style="dim")
    console.print(f"Numbers: {page.with_name('probe.json')}")
    console.print(f"Next: open {page}")


def _findings(layer: LayerProbe) -> str:
    """A few of its figures, averaged over heads and rows."""
    said: list[str] = []
    for quantity, key, words in FINDINGS:
        values = [x for each in layer.of(quantity) for x in each.figures.get(key, ()) if x is not None]
        if values:
            said.append(f"{words} {sum(values) / len(values):.3g}")
    return ", ".join(said)


def _carry_out(config: StudyConfig, *, force_unlock: bool = False) -> None:
    """Run to the end, narrated; then what came out."""
    place = quote(str(config.directory))
    stopped: list[bool] = []
    try:
        directory = run_study(
            config,
            announce=_narrator(),
            on_begin=lambda: _introduce(config),
            on_look=_progress(config.directory),
            on_stop=lambda: stopped.append(True),
            force_unlock=force_unlock,
        )
    except KeyboardInterrupt:
        console.print(f"Stopped; nothing is lost. Go on with: archsearch study resume {place}")
        raise
    if stopped:
        console.print(f"Stopped as asked; nothing is lost. Go on with: archsearch study resume {place}")
        return
    _say_outcome(directory, config)


def _say_outcome(directory: StudyDirectory, config: StudyConfig) -> None:
    """What came out of a study so far, its report, what to do next."""
    place = quote(str(config.directory))
    evidence = read_evidence(directory)
    concluded = conclude(evidence)
    have, wanted = len(ended(evidence)), wanted_of(directory, evidence, config)
    if concluded is not None:
        print_conclusions(concluded, evidence, directory.path)
    else:
        print_ranking(evidence)
    page = write_report(directory)
    console.print(f"Report: {page}")
    if have < wanted:
        console.print(f"The time was over after {have} of {wanted} trials. Go on with: archsearch study resume {place}")
        return
    if concluded is not None:
        console.print(f"Next: open {quote(str(page))}, which says what these verdicts rest on")
        return
    _export_winner(directory)
    finals = finals_of(directory)
    if finals is not None:
        console.print(f"{finals.words}. Next: archsearch study {next_of(finals, str(directory.path))}")
    elif config.baselines:
        console.print(f"Next, on {config.seeds.finals} fresh seeds, who won: archsearch study finals {place}")
    if not directory.is_spent():
        console.print(f"Or, for more trials: archsearch study resume {place} trials={2 * config.trials or 8}")


def _export_winner(directory: StudyDirectory) -> None:
    """Write the winner's module, if its checkpoint lies here: a study may travel without its checkpoints."""
    winner = find_winner(directory)
    if winner is None:
        return
    number = winner.row.number
    if not (winner.directory.trial(number).checkpoints / "latest.json").exists():
        console.print(f"Not exported: the checkpoint of trial {number} is not here, where it did not end")
        return
    export(str(directory.path), str(directory.path / "winner"), overwrite=True, name=None)


def _introduce(config: StudyConfig) -> None:
    """Say what is about to run."""
    asked = f"{counted(config.trials, 'trial')} beside {counted(len(config.baselines), 'baseline')}"
    if config.entrants:
        asked = f"{counted(len(config.entrants), 'entrant')} on {config.seeds.finals} fresh seeds each"
    elif config.learning_rates:
        asked += f", each at {counted(len(config.learning_rates), 'learning rate')}"
    console.print(f"Study in {config.directory}: {asked}")


def _narrator() -> Callable[[str], None]:
    """Prints what happens, with the time since the start."""
    began = time.monotonic()

    def tell(text: str) -> None:
        seconds = round(time.monotonic() - began)
        console.print(f"{seconds // 60:3d}:{seconds % 60:02d}  {text}")

    return tell


def _progress(directory: Path) -> Callable[[], None]:
    """Prints how far the study has come, now and then."""
    told = time.monotonic()

    def look() -> None:
        nonlocal told
        if time.monotonic() - told < SECONDS_BETWEEN_LINES:
            return
        told = time.monotonic()
        found = read_status(StudyDirectory(directory))
        running = ", ".join(f"trial {trial['trial']} {trial['progress']:.0%}" for trial in found.running)
        left = "" if found.seconds_left is None else f"; about {minutes(found.seconds_left)} left"
        console.print(f"        {found.ended} of {found.wanted} ended; {running}{left}", style="dim")

    return look
