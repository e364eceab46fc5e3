"""Commands about a rule, or about a space of them: what there is, what it is, whether it holds, how fast it is."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from archsearch.cli.arguments import MOST_POINTS, Json

app = typer.Typer()

RuleName = Annotated[
    str,
    typer.Argument(
        metavar="RULE",
        help="A name of the zoo, path/to/file.py (its RULE), or path/to/file.py:NAME.",
        show_default=False,
    ),
]
RuleOrSpace = Annotated[
    str,
    typer.Argument(
        metavar="RULE",
        help="A name of the zoo or of a ready space, path/to/file.py (its RULE or SPACE), path/to/file.py:NAME, "
        "or a space's path/to/file.yaml.",
        show_default=False,
    ),
]
RuleNames = Annotated[
    list[str], typer.Argument(metavar="RULE...", help="Rules to time side by side.", show_default=False)
]


@app.command(epilog="Example: archsearch rules")
def rules(*, json: Json = False) -> None:
    """The zoo: name, equation, decay, substeps, source."""
    from archsearch.mixers.commands import list_rules

    list_rules(json=json)


@app.command(epilog="Example: archsearch show q_delta, or archsearch show delta_family --points 3")
def show(
    rule: RuleOrSpace,
    *,
    points: Annotated[int, typer.Option(min=0, max=MOST_POINTS, help="Of a space: draw so many points.")] = 0,
    json: Json = False,
) -> None:
    """Equation, operands, normal form, kernel plan, state bytes, FLOPs and bytes a token, spectrum and stability.

    Of a space: its holes, its structures, how many of them are distinct rules.
    """
    from archsearch.spaces.lookup import space_or_none

    if (space := space_or_none(rule)) is not None:
        from archsearch.spaces.commands import show_space

        show_space(space, rule, json=json, points=points)
        return
    from archsearch.mixers.lookup import find_rule, names_of

    found = find_rule(rule)
    from archsearch.kernels import commands

    commands.show(found, json=json, known_as=names_of(found))


@app.command(epilog="Example: archsearch check q_delta --backend torch")
def check(
    rule: RuleName,
    *,
    backend: Annotated[str, typer.Option(help="reference, torch, triton, or auto: what this machine has.")] = "auto",
    json: Json = False,
) -> None:
    """Validity ladder on this machine: backends agree, gradients, every path learns, ... RULE may name a layer: mla."""
    from archsearch.mixers.lookup import find_layer, find_rule

    if (layer := find_layer(rule)) is not None:
        from archsearch.mixers.partner_check import check_layer

        if not check_layer(layer, backend=backend, json=json):
            raise typer.Exit(1)
        return
    found = find_rule(rule)
    from archsearch.kernels import commands
    from archsearch.kernels.ladder import named
    from archsearch.mixers.ladder import checks as of_the_layer
    from archsearch.studies.training.ladder import checks as of_training

    form = named(backend)
    others = (*of_the_layer(found, form), *of_training(found, form))
    if not commands.check(found, backend=form, json=json, others=others).passed:
        raise typer.Exit(1)


@app.command(epilog="Example: archsearch bench gated_delta_net q_delta --shape 8x4096 --shape 1x32768")
def bench(
    rules: RuleNames,
    *,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BxT[xH]", help="Batch x tokens, x heads if you like; repeat it for several.", show_default=False
        ),
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Heads H.", show_default=False)] = None,
    key_dim: Annotated[int | None, typer.Option(help="K, the width of q and k.", show_default=False)] = None,
    value_dim: Annotated[int | None, typer.Option(help="V, the width of v.", show_default=False)] = None,
    dtype: Annotated[
        str | None, typer.Option(help="bfloat16, float16, float32 or float64.", show_default=False)
    ] = None,
    peers: Annotated[bool, typer.Option(help="Time the kernels of others that are installed.")] = True,
    cold: Annotated[bool, typer.Option(help="On CUDA, time first calls with empty caches and with full ones.")] = True,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the JSON to a file, after every rule.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Time forward, forward + backward and step, side by side with the peers that are installed.

    Values are checked first: a rule that fails gets no speed. gated_delta_net is always timed too: it joins runs.
    Sizes left out are those that fill this machine.
    """
    from archsearch.mixers.lookup import find_rule

    found = [find_rule(rule) for rule in rules]
    from archsearch.kernels import commands
    from archsearch.kernels.bench.case import Asked

    asked = Asked(tuple(shape or ()), heads, key_dim, value_dim, dtype)
    benched = commands.bench(
        found,
        control=find_rule("gated_delta_net"),
        asked=asked,
        peers=peers,
        cold=cold,
        command=" ".join(["archsearch", *sys.argv[1:]]),
        save_to=save,
        json=json,
    )
    if not benched.passed:
        raise typer.Exit(1)
