"""Names of trials for people: the choices of their rules, and what else differs among those that stand together."""

from collections.abc import Mapping, Sequence
from typing import Any

from archsearch.studies.design.rates import RATE

RULE = "rule/"
BRANCHES_NOT_TAKEN = ("none", "no")


def choice_words(choices: Mapping[str, Any]) -> str:
    """The choices of a rule in a few words: `scalar decay, learned erase, 0.31 lam`."""
    words: list[str] = []
    for path, value in choices.items():
        if path.startswith(RULE) and value not in BRANCHES_NOT_TAKEN:
            words.append(f"{_figure(value)} {path.rsplit('/', 1)[-1]}")
    return ", ".join(words) or "plain"


def differing(every: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The paths outside the rule, the learning rate's and the seed's apart, at which not all choices are the same."""
    paths = dict.fromkeys(path for choices in every for path in choices if "/" in path)
    return tuple(
        path
        for path in paths
        if not path.startswith(RULE)
        and path != RATE
        and len({str(choices[path]) for choices in every if path in choices}) > 1
    )


def name_words(choices: Mapping[str, Any], paths: Sequence[str]) -> str:
    """The rule's choices, then those at `paths` that were made: `scalar decay, head dim 64, e rank 8`.

    A rule without choices is left out where something else tells trials apart.
    """
    others = [f"{_called(path)} {_figure(choices[path])}" for path in paths if path in choices]
    rule = choice_words(choices)
    has_choices = any(path.startswith(RULE) for path in choices)
    return ", ".join(([rule] if has_choices or not others else []) + others)


def _called(path: str) -> str:
    """The last part of a path in words, with the operand that it is of: `conv`, `e rank`."""
    parts = [part.partition("=")[0] for part in path.split("/")]
    owner = parts[-2] if len(parts) > 3 else ""
    return f"{owner} {parts[-1]}".strip().replace("_", " ")


def _figure(value: object) -> str:
    """Numbers by two digits behind the point, very small and large ones by two digits."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.2g}"
