"""The front door: it knows the commands' names and loads a floor's `commands.py` only when one of them is called.

Exit codes: 0 done; 1 a fault of archsearch; 2 bad input, one clear line on stderr; 3 another driver holds the study;
130 interrupted.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from archsearch import __version__
from archsearch.errors import ArchsearchError, ClusterLostError

app = typer.Typer(
    name="archsearch",
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,
    help="From an update rule, written as its equation, to a trained, measured and exported sequence mixer.",
    epilog="Start with: archsearch rules",
)
study = typer.Typer(
    suggest_commands=False, help="A search: run it, go on with it, read it.", epilog="Start with: archsearch study run"
)
app.add_typer(study, name="study")

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
Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file.", show_default=False)]
Source = Annotated[
    str,
    typer.Argument(metavar="CONFIG-OR-DIRECTORY", help="A YAML file, or the study's directory.", show_default=False),
]
UNUSABLE = (errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Of a path that can be neither read nor written."""

PATH_FAULTS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR),
    *UNUSABLE,
)
"""Of the disk or of a path that the user chose, never of archsearch."""

MOST_POINTS = 10_000

Directory = Annotated[str, typer.Argument(metavar="DIRECTORY", help="The study's directory.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Replace values of the file.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


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


@app.command(epilog="Example: archsearch train studies/configs/trial.yaml training.learning_rate=1e-3")
def train(config: Config, overrides: Overrides = None) -> None:
    """Train one model: one trial, in this process."""
    from archsearch.studies import commands

    commands.train(config, overrides or [])


@study.command("check", epilog="Example: archsearch study check studies/configs/quickstart.yaml")
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


@study.command(epilog="Example: archsearch study run studies/configs/quickstart.yaml trials=20")
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


@study.command(epilog="Example: archsearch study resume runs/quickstart trials=40")
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


@study.command(epilog="Example: archsearch study finals runs/quickstart")
def finals(directory: Directory, overrides: Overrides = None) -> None:
    """Retrain the best of a finished search and its baselines on fresh seeds: who won, what is a tie.

    It is a study of its own in DIRECTORY/finals; the same command goes on with it.
    """
    from archsearch.studies import commands

    commands.finals(directory, overrides or [])


@study.command(epilog="Example: archsearch study aa studies/configs/aa.yaml")
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


@study.command(epilog="Example: archsearch study status runs/quickstart")
def status(
    directory: Directory,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it and leave, on a terminal too.")] = False,
    json: Json = False,
) -> None:
    """Running trials, rungs, time left; on a terminal it follows the driver. Reads files only."""
    from archsearch.studies import commands

    commands.status(directory, json=json, once=once)


@study.command(epilog="Example: archsearch study stop runs/quickstart")
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


@study.command(epilog="Example: archsearch study pareto runs/quickstart --json")
def pareto(directory: Directory, *, json: Json = False) -> None:
    """The trials that no other beats in every objective."""
    from archsearch.studies import commands

    commands.pareto(directory, json=json)


@study.command(epilog="Example: archsearch study best runs/quickstart --json")
def best(directory: Directory, *, json: Json = False) -> None:
    """The ranking, with the baselines in it, and the best rule as an equation."""
    from archsearch.studies import commands

    commands.best(directory, json=json)


@study.command(epilog="Example: archsearch study report runs/quickstart")
def report(directory: Directory) -> None:
    """Write the report: one HTML file that needs no network."""
    from archsearch.studies import commands

    commands.report(directory)


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line, by default the process's own, and leave with its exit code."""
    sys.exit(_exit_code(list(sys.argv[1:] if arguments is None else arguments)))


def _leave(code: int) -> NoReturn:
    """End this process now, whatever others have registered to be done at its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(arguments: list[str]) -> int:
    if arguments in ([], ["study"]):
        arguments = [*arguments, "--help"]
    try:
        code = app(arguments, prog_name="archsearch", standalone_mode=False)
    except ClusterLostError as error:
        _leave(_say(f"{type(error).__name__}: {error}", error.exit_code))
    except ArchsearchError as error:
        return _say(f"{type(error).__name__}: {error}", error.exit_code)
    except typer.TyperException as usage:
        return _say(_usage(usage, arguments), 2)
    except Exception as fault:
        if isinstance(fault, OSError) and fault.errno in PATH_FAULTS:
            return _say(_path_fault(fault), 2)
        traceback.print_exc()
        return _say("This is a fault of archsearch, not of the input: please report it with the lines above.", 1)
    return _say("Interrupted.", 130) if code == 130 else int(code or 0)


def _say(line: str, code: int) -> int:
    """Tell stderr one thing and hand the exit code on."""
    sys.stdout.flush()
    print(line, file=sys.stderr)
    return code


def _path_fault(fault: OSError) -> str:
    """A file system that refuses, in one line: where, why, what to do."""
    place = fault.filename or "a file"
    if fault.errno in UNUSABLE:
        again = "choose another path and run the same command again; nothing is lost"
        return f"{place} cannot be used: {fault.strerror}; {again}"
    advice = "free some space" if fault.errno in (errno.ENOSPC, errno.EDQUOT) else "choose a path that can be written"
    return f"{place} cannot be written: {fault.strerror}; {advice} and run the same command again; nothing is lost"


def _usage(fault: typer.TyperException, arguments: list[str]) -> str:
    """A wrong command line in one line: what is wrong, the nearest name, where to look."""
    context = getattr(fault, "ctx", None)
    command = context.command_path if context else "archsearch"
    nearest = ""
    if known := getattr(context and context.command, "commands", {}):
        tried = next((word for word in arguments if word not in ("study",) and not word.startswith("-")), "")
        nearest = "".join(f" Did you mean {name}?" for name in get_close_matches(tried, known, n=1))
    return f"{fault.format_message().rstrip('.')}.{nearest} Try: {command} --help"
