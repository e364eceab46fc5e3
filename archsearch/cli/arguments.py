"""Arguments and options that several commands take."""

from typing import Annotated

import typer

MOST_POINTS = 10_000
"""Of a space that are drawn at once."""

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)]
Source = Annotated[
    str,
    typer.Argument(metavar="CONFIG-OR-DIRECTORY", help="A YAML file, or the study's directory.", show_default=False),
]
Directory = Annotated[str, typer.Argument(metavar="DIRECTORY", help="The study's directory.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Replace values of the file.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
