"""Commands about one model: train it, export it, look into its memory."""

from typing import Annotated

import typer

from archsearch.cli.arguments import Config, Overrides

app = typer.Typer()


@app.command(epilog="Example: archsearch train studies/configs/trial.yaml training.learning_rate=1e-3")
def train(config: Config, overrides: Overrides = None) -> None:
    """Train one model: one trial, in this process."""
    from archsearch.studies import commands

    commands.train(config, overrides or [])


@app.command(epilog="Example: archsearch export runs/quickstart winner")
def export(
    source: Annotated[
        str,
        typer.Argument(
            metavar="STUDY-OR-TRIAL",
            help="A study (the winner of its finals, else its own) or a trial.",
            show_default=False,
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Where the module goes.", show_default=False)],
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the directory if it exists.")] = False,
    name: Annotated[
        str | None, typer.Option(help="The module's name; when left out the rule's, in the zoo if it is there.")
    ] = None,
) -> None:
    """Write the stand-alone module: one .py, its weights, its configuration, its card and its own test."""
    from archsearch.studies import commands

    commands.export(source, target, overwrite=overwrite, name=name)


@app.command(epilog="Example: archsearch probe runs/quickstart --text README.md")
def probe(
    source: Annotated[
        str,
        typer.Argument(
            metavar="EXPORT-OR-TRIAL",
            help="An exported module, a trial, or a study (its winner).",
            show_default=False,
        ),
    ],
    *,
    text: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="What it reads; held-out data when left out.", show_default=False),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where the results go; beside the source when left out.", show_default=False),
    ] = None,
) -> None:
    """What the memory does while it reads: contraction, gate shares, erasure, spectra; numbers and one HTML page."""
    from archsearch.studies import commands

    commands.probe(source, text, out)
