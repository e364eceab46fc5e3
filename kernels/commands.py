"""show, check, bench: a rule described, held against its own meaning, timed."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from archsearch.dsl import Rule
from archsearch.errors import ConfigError

if TYPE_CHECKING:
    from rich.status import Status

    from archsearch.kernels.bench.case import Asked
    from archsearch.kernels.bench.report import Benched
    from archsearch.kernels.ladder import Check, Line
    from archsearch.kernels.verdicts import Checked


def show(rule: Rule, *, json: bool, known_as: Sequence[str] = ()) -> None:
    """Print everything that can be said of a rule without running it; `known_as` are names of the same rule.

    Errors: HoleError while holes are open.
    """
    from archsearch.kernels.description import describe
    from archsearch.kernels.showing import console, print_description

    description = describe(rule, known_as=known_as)
    if json:
        print(jsonlib.dumps(description.as_json(), indent=2, ensure_ascii=False))
    else:
        print_description(description, console())


def check(rule: Rule, *, backend: str, json: bool, others: Sequence[Check] = ()) -> Checked:
    """Climb the validity ladder on this machine and print a line a row; the caller turns `passed` into an exit code.

    `others`: rows of the floors above.

    Errors: HoleError while holes are open; BackendError for a backend that is unknown or cannot run here.
    """
    from archsearch.kernels.ladder import climb
    from archsearch.kernels.showing import console
    from archsearch.kernels.verdicts import Checked, print_line

    page = console()
    lines: list[Line] = []
    for line in climb(rule, backend, others):
        lines.append(line)
        if not json:
            print_line(line, page)
    found = Checked(rule, backend, tuple(lines))
    if json:
        print(jsonlib.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        page.print(f"\n{found.summary}", highlight=False)
        page.print(_after_check(found), style="dim", highlight=False)
    return found


AFTER_A_FAILURE = (
    (frozenset({8}), "A failed row 8 is the rule's own: bound its strengths."),
    (frozenset({7}), "A failed row 7 is the layer's: what it names never learns."),
    (frozenset({10, 11}), "A failed row 10 or 11 is a rule that does not learn, or that costs more than it should."),
    (frozenset({1, 2, 3, 4, 5, 6, 9}), "A failed row 1 to 6 or 9 is a form that breaks the rule's promise: report it."),
)
"""What to say of rows that failed."""


def _after_check(found: Checked) -> str:
    if found.passed:
        return "Next: archsearch bench, with the same RULE"
    from archsearch.kernels.ladder import Status

    failed = {line.row for line in found.lines if line.status is Status.FAILED}
    return " ".join(text for rows, text in AFTER_A_FAILURE if failed & rows)


def bench(
    rules: Sequence[Rule],
    *,
    control: Rule,
    asked: Asked | None = None,
    peers: bool = True,
    cold: bool = True,
    command: str = "archsearch bench",
    save_to: Path | None = None,
    json: bool = False,
) -> Benched:
    """Time rules on this machine, values first, each beside its peers where they are installed.

    `control` is timed as well, so that runs can be joined. `cold`: first calls with empty caches, on CUDA. What has
    been found so far is in `save_to` after every rule.

    Errors: HoleError while holes are open; ConfigError for sizes that are none or a file in no directory.
    """
    from archsearch.kernels.bench.case import Asked, case_here, cases_of
    from archsearch.kernels.bench.report import Benched, print_benched, save
    from archsearch.kernels.bench.run import run
    from archsearch.kernels.showing import console

    if save_to is not None and not save_to.parent.is_dir():
        raise ConfigError(f"--save needs a directory that exists; got {save_to}. Make {save_to.parent} first")
    cases = cases_of(asked or Asked(), case_here())
    page, found = console(), Benched(command, cases)
    for found in run(rules, control, Benched(command, cases), peers=peers, cold=cold, status=_progress):
        if save_to is not None:
            save(jsonlib.dumps(found.as_json(), indent=2, ensure_ascii=False), save_to)
    if json:
        print(jsonlib.dumps(found.as_json(), indent=2, ensure_ascii=False))
    else:
        print_benched(found, page)
    return found


def _progress(text: str) -> Status:
    """A line on stderr while something runs; nothing where stderr is no terminal."""
    from rich.console import Console

    return Console(stderr=True).status(text)
