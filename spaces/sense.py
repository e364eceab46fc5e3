"""Whether a space means something, before anything is drawn from it: one clear line for each mistake."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from archsearch.dsl import Operand, Rule
from archsearch.errors import SpaceError
from archsearch.holes import OneOf, has_holes, holes
from archsearch.mixers.layer.options import Layer
from archsearch.mixers.models.options import ENTRIES, SIZES, Model
from archsearch.spaces.options import Budget, Schedule, Training

SOLVED: Mapping[str, tuple[str, ...]] = {
    "state_bytes": ("layer/head_dim", "layer/expand_v"),
    "parameters": ("model/width",),
    "flops_per_token": ("model/width",),
}
"""The sizes that are solved for a quantity of the budget: a choice among them would be overruled."""


def check_space(rule: object, layer: Layer, model: Model, training: Training, budget: Budget) -> None:
    """SpaceError for a rule that is none, for holes where none may stand or that no choice needs, and for sources of
    operands that the rule never uses.
    """
    operands = operands_of(rule)
    _check_fixed(training, budget)
    _check_solved(layer, model, budget)
    unused = [name for name in layer.operands if name not in operands]
    if unused:
        raise SpaceError(
            f"layer.operands names operands of the rule ({', '.join(operands)}); got {unused[0]!r}, "
            "which no choice of its holes uses: rename or remove it"
        )
    for path, why in _needless(layer, model, training):
        raise SpaceError(f"a hole must change something; got {path}, but {why}: give it one value")


def operands_of(rule: object) -> dict[str, Operand]:
    """The operands of a rule, or of all the rules that a hole chooses from. SpaceError for what is neither."""
    if isinstance(rule, Rule):
        return rule.operands
    options = rule.options if isinstance(rule, OneOf) else ()
    if not options or not all(isinstance(option, Rule) for option in options):
        raise SpaceError(
            f"rule must be a Rule, with holes if you like, or one_of(first=..., second=...) of rules; got {rule!s:.60}"
        )
    unlabelled = [label for label in cast(OneOf, rule).labels if not label.isidentifier()]
    if unlabelled:
        raise SpaceError(f"rules to choose from need labels, one_of(first=..., second=...); got {unlabelled[0]!r:.60}")
    return {name: operand for option in options for name, operand in cast(Rule, option).operands.items()}


def _check_fixed(training: Training, budget: Budget) -> None:
    """The budget and the number of steps are those of the study, not of a point."""
    fixed = [f"budget/{path}" for path in holes(budget)]
    fixed += [f"training/{path}" for path in holes(training) if path.startswith("batch_tokens")]
    if fixed:
        raise SpaceError(f"no hole may stand where the budget is fixed; got {fixed[0]}: give it one value")


def _check_solved(layer: Layer, model: Model, budget: Budget) -> None:
    """A size is solved or searched, not both."""
    searched = [*(f"layer/{path}" for path in holes(layer)), *(f"model/{path}" for path in holes(model))]
    for quantity, sizes in SOLVED.items():
        twice = [path for path in searched if path.startswith(sizes)]
        if getattr(budget, quantity) is not None and twice:
            raise SpaceError(
                f"a size is solved or searched, not both; got {twice[0]}, which budget.{quantity} solves: "
                f"give it one value or take budget.{quantity} out"
            )


def _needless(layer: Layer, model: Model, training: Training) -> Iterator[tuple[str, str]]:
    """(path, reason) of holes that exist in no point."""
    entries = set(_words(model.pattern)) & set(ENTRIES)
    for entry, name in SIZES.items():
        if entry not in entries and has_holes(getattr(model, name)):
            yield f"model/{name}", f"no choice of model.pattern has a layer {entry!r}"
    if layer.output_gate == "none" and (has_holes(layer.gate_projection) or has_holes(layer.gate_first)):
        name = "gate_projection" if has_holes(layer.gate_projection) else "gate_first"
        yield f"layer/{name}", "layer.output_gate is none"
    if training.schedule is Schedule.COSINE and has_holes(training.decay):
        yield "training/decay", "training.schedule is cosine, which decays all the time"


def _words(pattern: Any) -> Iterator[str]:
    """Every word in a pattern with holes."""
    if isinstance(pattern, OneOf):
        pattern = pattern.options
    if isinstance(pattern, tuple):
        for part in cast(tuple[Any, ...], pattern):
            yield from _words(part)
    elif isinstance(pattern, str):
        yield pattern
