"""The commands of this floor as plain functions: they run, read and hand out studies and trials, and print."""

import contextlib
import dataclasses
import json as jsonlib
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from pathlib import Path
from shlex import quote

from rich import box
from rich.console import Console
from rich.table import Table as Printed

from archsearch.dsl import parse_rule
from archsearch.errors import ArchsearchError, ClusterLostError, DiskFullError, StudyError, StudyLockedError
from archsearch.lowering.display import equation
from archsearch.mixers.probes.probe import LayerProbe
from archsearch.mixers.probes.quantities import Name
from archsearch.report.tables import Column, Table
from archsearch.report.tables import shown as cell_text
from archsearch.report.words import counted
from archsearch.studies.design.config import StudyConfig, read_study_config
from archsearch.studies.engine.checking import check_study
from archsearch.studies.engine.run import run_study
from archsearch.studies.engine.session import force_unlocking
from archsearch.studies.engine.single import read_trial, run_trial
from archsearch.studies.evidence.aa import Setting, simulate
from archsearch.studies.evidence.conclusions import Conclusions, conclude
from archsearch.studies.evidence.finals import aa_config, check_alone, finals_config
from archsearch.studies.evidence.pareto import places
from archsearch.studies.evidence.pool import FIGURES_FILE, SEEDS_FILE, pool_of, read_pool, write_figures
from archsearch.studies.evidence.rows import Evidence, read_evidence
from archsearch.studies.evidence.status import Status, ended, read_status, wanted_of
from archsearch.studies.evidence.winner import Finals, finals_of, find_winner
from archsearch.studies.evidence.wording import shown, spoken
from archsearch.studies.export import export_and_check
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.lock import is_held, slow_to_leave
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.probe import find_subject, probe_subject, target_of, write_probe
from archsearch.studies.report.caveats import NO_AA, aa_beside, aa_lines, warnings
from archsearch.studies.report.check_page import print_check
from archsearch.studies.report.live import SECONDS_BETWEEN_LOOKS, follow, minutes, status_view
from archsearch.studies.report.matched_page import unequal
from archsearch.studies.report.study_page import keep_report, ranking_table, write_report
from archsearch.studies.report.verdict_page import pareto_table, summary, verdict_table
from archsearch.studies.training.configuration import read_config
from archsearch.studies.training.progress import shown_progress

WIDTH = 120
"""Columns where the output is no terminal."""

SECONDS_BETWEEN_LINES = 20.0
"""Between two lines of progress."""

SECONDS_BEFORE_WORDS = 30.0
"""That a driver has to stop before it is told what is waited for."""

BRIEF = ("rank", "trial", "name", "front", "outcome", "learning_rate", "reason")
"""Columns of the ranking that a terminal shows, beside the objectives."""

VERDICT_BRIEF = ("entrant", "verdict", "mean", "difference", "low", "high", "p", "seeds", "reason")
"""Columns of a table of verdicts that a terminal shows."""

FINDINGS = (
    (Name.CONTRACTION, "mean", "step"),
    (Name.READOUT, "mean", "readout cosine"),
    (Name.READABILITY, "lost_at_the_end", "lost"),
    (Name.TRANSITION, "norm_most", "transition norm"),
    (Name.HEALTH, "effective_rank_last", "effective rank"),
)
"""Figures that a terminal shows of a probed layer: quantity, figure, what it is called."""

console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)


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
    """Retrain the best of a finished search and its baselines on fresh seeds, or go on with that; then say who won."""
    with asked_in(directory):
        _carry_out(finals_config(Path(directory), overrides))


def aa(source: str, overrides: Sequence[str], *, setting: Setting, json: bool) -> None:
    """Train one rule on many seeds, or take seeds that were kept; draw studies from them and count false winners."""
    path = Path(source)
    if path.suffix == ".json":
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


def status(directory: str, *, json: bool, once: bool = True) -> None:
    """Print how far the study has come; without `once`, on a terminal, follow it while its driver runs."""
    home = StudyDirectory(Path(directory))
    found = read_status(home)
    if json:
        print(jsonlib.dumps(found.record(), indent=1))
        return
    if not once and console.is_terminal:
        found = follow(console, home)
    _print_status(found)


def pareto(directory: str, *, json: bool) -> None:
    """Print the trials that no other beats in everything."""
    evidence = read_evidence(StudyDirectory(Path(directory)))
    front = [place for place in places(evidence, conclude(evidence)) if place.on_front]
    table = pareto_table(front, evidence.objectives)
    table = dataclasses.replace(table, columns=[Column("trial", "trial"), *table.columns])
    if json:
        print(table.json(), end="")
        return
    known = [column.key for column in table.columns if any(row.get(column.key) is not None for row in table.rows)]
    shown_keys = [key for key in known if key not in ("front", "beaten_by")]
    _print_table(table, shown_keys)
    if not front:
        console.print("No trial has reached its full budget yet.")
    console.print(f"Next: archsearch study report {quote(directory)}")


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


def best(directory: str, *, json: bool) -> None:
    """Print the ranking and the best rule; of finals the verdicts."""
    evidence = read_evidence(StudyDirectory(Path(directory)))
    concluded = conclude(evidence)
    if json:
        print(ranking_table(evidence).json() if concluded is None else _verdicts_json(concluded, evidence), end="")
        return
    if concluded is not None:
        _print_conclusions(concluded, evidence, Path(directory))
        console.print(
            f"Next: archsearch study report {quote(directory)}, or archsearch export {quote(directory)} winner"
        )
        return
    _print_ranking(evidence)
    finals = finals_of(StudyDirectory(Path(directory)))
    if finals is not None:
        console.print(finals.words)
        console.print(f"Next: archsearch study {_next_of(finals, directory)}")
        return
    console.print(f"Next: archsearch study report {quote(directory)}")


def report(directory: str, keep: str | None = None) -> None:
    """Write the report and print its path. keep: where its page and tables are written too, to outlive the study."""
    study = StudyDirectory(Path(directory))
    console.print(f"Report: {write_report(study)}")
    if keep is not None:
        files = keep_report(study, Path(keep))
        console.print(f"Kept: {counted(len(files), 'file')} in {keep}")


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
    evidence = read_evidence(directory)
    concluded = conclude(evidence)
    have, wanted = len(ended(evidence)), wanted_of(directory, evidence, config)
    if concluded is not None:
        _print_conclusions(concluded, evidence, directory.path)
    else:
        _print_ranking(evidence)
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
        console.print(f"{finals.words}. Next: archsearch study {_next_of(finals, str(directory.path))}")
    elif config.baselines:
        console.print(f"Next, on {config.seeds.finals} fresh seeds, who won: archsearch study finals {place}")
    if not directory.is_spent():
        console.print(f"Or, for more trials: archsearch study resume {place} trials={2 * config.trials or 8}")


def _next_of(finals: Finals, search: str) -> str:
    """The command that goes on with finals, or shows their verdicts."""
    return f"finals {quote(search)}" if finals.ended < finals.wanted else f"best {quote(str(finals.directory.path))}"


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


def _print_ranking(evidence: Evidence) -> None:
    _print_table(ranking_table(evidence), (*BRIEF, *evidence.objectives))
    console.print("Scores of one seed: they screen, they do not conclude.", style="dim")
    for line in warnings(evidence):
        console.print(line, style="yellow")
    winner = evidence.winner
    if winner is None:
        console.print("No trial has reached its full budget yet.")
        return
    values = ", ".join(f"{spoken(name)} {shown(name, winner.values[name])}" for name in evidence.objectives)
    console.print(f"\nWinner: trial {winner.number}, {winner.name} ({values})")
    for line in equation(parse_rule(winner.rule)).splitlines():
        console.print(f"    {line}")
    console.print()


def _verdicts_json(concluded: Conclusions, evidence: Evidence) -> str:
    """The rows of every table of verdicts, by objective."""
    tables = {name: verdict_table(evidence, concluded, name) for name in evidence.objectives}
    return jsonlib.dumps({name: jsonlib.loads(table.json()) for name, table in tables.items()}, indent=1) + "\n"


def _print_conclusions(concluded: Conclusions, evidence: Evidence, directory: Path) -> None:
    """Every entrant against the baseline, a table for each objective; then what the verdicts rest on."""
    for objective in evidence.objectives:
        console.print(f"\n{spoken(objective)} against {concluded.against}, paired by seed")
        _print_table(verdict_table(evidence, concluded, objective), VERDICT_BRIEF)
        console.print(summary(concluded, objective))
    console.print()
    for line in [*warnings(evidence, concluded), unequal(evidence, concluded)]:
        if line:
            console.print(line, style="yellow")
    console.print((aa_beside(directory) or [NO_AA])[0], style="dim")


def _print_table(table: Table, keys: Collection[str]) -> None:
    printed = Printed(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = [column for column in table.columns if column.key in keys]
    for column in columns:
        numeric = any(isinstance(row.get(column.key), int | float) for row in table.rows)
        printed.add_column(f"{column.title} {column.unit}".strip(), justify="right" if numeric else "left")
    styles = {"winner": "bold", "reference": "dim", "ended": "dim"}
    for index, row in enumerate(table.rows):
        cells = ["" if row.get(c.key) is None else cell_text(row.get(c.key), c) for c in columns]
        printed.add_row(*cells, style=styles.get(table.marks.get(index, ""), ""))
    console.print(printed, soft_wrap=False)


def _print_status(found: Status) -> None:
    console.print(status_view(found))
    finished = found.ended >= found.wanted
    console.print(f"Next: archsearch study {'best' if finished or found.driver else 'resume'} {quote(found.directory)}")
