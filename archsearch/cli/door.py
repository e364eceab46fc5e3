"""The commands put together under one name."""

from typing import Annotated

import typer

from archsearch import __version__
from archsearch.cli import models, rules, study

app = typer.Typer(
    name="archsearch",
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="From an update rule, written as its equation, to a trained, measured and exported sequence mixer.",
    epilog="Start with: archsearch rules",
)
app.add_typer(rules.app)
app.add_typer(models.app)
app.add_typer(study.app, name="study")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"archsearch {__version__}")
        raise typer.Exit


@app.callback()
def _door(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""
