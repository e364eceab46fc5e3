"""`archsearch study`: a search is run, gone on with, read and ended."""

from typing import Annotated

import typer

from archsearch.cli.arguments import MOST_POINTS, Directory, Json, Overrides, Source

app = typer.Typer(
    suggest_commands=False, help="A search: run it, go on with it, read it.", epilog="Start with: archsearch study run"
)


@app.command("check", epilog="Example: archsearch study check studies/configs/quickstart.yaml")
def check_study(
    source: Source,
    overrides: Overrides = None,
    *,
    points: Annotated[
        int, typer.Option(min=1, max=MOST_POINTS, help="How many points of a space with more structures.")
    ] = 64,
    json: Json = False,
) -> None:
    """Without training: build what the study draws, say what a trial costs, name every point that cannot be."""
    from archsearch.studies import commands

    if not commands.check(source, overrides or [], points=points, json=json):
        raise typer.Exit(2)


@app.command(epilog="Example: archsearch study run studies/configs/quickstart.yaml trials=20")
def run(
    source: Source,
    overrides: Overrides = None,
    *,
    imported: Annotated[
        str | None,
        typer.Option(
            "--import",
            metavar="STUDY",
            help="An older study, whose finished trials count where they are points of this one.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create the study, or go on with it, until its trials are done; then rank, report and export."""
    from archsearch.studies import commands

    commands.run(source, overrides or [], imported)


@app.command(epilog="Example: archsearch study resume runs/quickstart trials=40")
def resume(
    directory: Directory,
    overrides: Overrides = None,
    *,
    force_unlock: Annotated[
        bool, typer.Option("--force-unlock", help="Take the study from a driver whose machine is gone.")
    ] = False,
) -> None:
    """Go on with a study that was interrupted, or give it more trials."""
    from archsearch.studies import commands

    commands.resume(directory, overrides or [], force_unlock=force_unlock)


@app.command(epilog="Example: archsearch study finals runs/quickstart")
def finals(directory: Directory, overrides: Overrides = None) -> None:
    """Retrain the best of a finished search and its baselines on fresh seeds: who won, what is a tie.

    It is a study of its own in DIRECTORY/finals; the same command goes on with it.
    """
    from archsearch.studies import commands

    commands.finals(directory, overrides or [])


@app.command(epilog="Example: archsearch study aa studies/configs/aa.yaml")
def aa(
    source: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG-OR-DIRECTORY",
            help="A YAML file with one entrant, a finished search (its baseline), or seeds.json of an earlier one.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    *,
    studies: Annotated[int, typer.Option(help="Studies drawn from the trained seeds.")] = 1000,
    finalists: Annotated[int, typer.Option(help="Finalists of each, beside the baseline.")] = 3,
    seeds: Annotated[int, typer.Option(help="Seeds of each finalist.")] = 6,
    json: Json = False,
) -> None:
    """One rule against itself, through the code that gives verdicts: how often is there a winner where none is?"""
    from archsearch.studies import commands
    from archsearch.studies.evidence.aa import Setting

    commands.aa(source, overrides or [], setting=Setting(studies, finalists, seeds), json=json)


@app.command(epilog="Example: archsearch study status runs/quickstart")
def status(
    directory: Directory,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it and leave, on a terminal too.")] = False,
    json: Json = False,
) -> None:
    """Running trials, rungs, time left; on a terminal it follows the driver. Reads files only."""
    from archsearch.studies import reading

    reading.status(directory, json=json, once=once)


@app.command(epilog="Example: archsearch study stop runs/quickstart")
def stop(
    directory: Directory,
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for the next checkpoints; what came after the last is redone.")
    ] = False,
) -> None:
    """End a running study cleanly: its trials go on to their next checkpoints, its driver exits with 0."""
    from archsearch.studies import commands

    commands.stop(directory, now=now)


@app.command(epilog="Example: archsearch study pareto runs/quickstart --json")
def pareto(directory: Directory, *, json: Json = False) -> None:
    """The trials that no other beats in every objective."""
    from archsearch.studies import reading

    reading.pareto(directory, json=json)


@app.command(epilog="Example: archsearch study best runs/quickstart --json")
def best(directory: Directory, *, json: Json = False) -> None:
    """The ranking, with the baselines in it, and the best rule as an equation."""
    from archsearch.studies import reading

    reading.best(directory, json=json)


@app.command(epilog="Example: archsearch study report runs/quickstart")
def report(
    directory: Directory,
    *,
    keep: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Also write page and tables there, the tables as Markdown and CSV."),
    ] = None,
) -> None:
    """Write the report: one HTML file that needs no network."""
    from archsearch.studies import reading

    reading.report(directory, keep)
