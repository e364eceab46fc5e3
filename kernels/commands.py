"""show, check, bench: a rule described, held against its own meaning, timed."""

from __future__ import annotations

import json as jsonlib

from archsearch.dsl import Rule


def show(rule: Rule, *, json: bool) -> None:
    """Print everything that can be said of a rule without running it. Errors: HoleError while holes are open."""
    from archsearch.kernels.description import describe
    from archsearch.kernels.showing import console, print_description

    description = describe(rule)
    if json:
        print(jsonlib.dumps(description.as_json(), indent=2, ensure_ascii=False))
    else:
        print_description(description, console())
