"""What can be said of a rule without running it, gathered once for text and JSON. Loads neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from archsearch.dsl import Kind, Operand, Rule
from archsearch.lowering import NormalForm, lower
from archsearch.lowering.canonical import canonical_text
from archsearch.lowering.cost import Cost, Sizes, cost
from archsearch.lowering.display import equation, latex, one_line
from archsearch.lowering.plan import ChunkPlan, chunk_plan
from archsearch.lowering.spectrum import Spectrum, spectrum

RANGES = {
    Kind.QUERY: "any; a layer makes it a unit vector",
    Kind.KEY: "any; a layer makes it a unit vector",
    Kind.VALUE: "any",
    Kind.GATE: "a number, activated; usually in [0, 1]",
    Kind.CHANNEL_GATE: "numbers, activated; usually in [0, 1]",
    Kind.LOG_DECAY: "natural log of the decay, <= 0",
    Kind.SIGN: "-1 or 1",
}
WIDE = (0.0, 2.0)
"""Gates of twice the usual range: reflections, where the rule can take them."""


@dataclass(frozen=True, slots=True)
class Description:
    """Everything `archsearch show` says. `wide`: the spectrum with gates up to 2, where the transition has gates.

    known_as: names under which the same rule is known, however it is written.
    """

    rule: Rule
    form: NormalForm
    plan: ChunkPlan
    sizes: Sizes
    cost: Cost
    spectrum: Spectrum
    wide: Spectrum | None
    known_as: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data; sizes in elements, costs in bytes and FLOPs a token."""
        return {
            "name": self.rule.name,
            "hash": self.rule.hash,
            "known_as": list(self.known_as),
            "canonical_form": canonical_text(self.form).splitlines(),
            "code": str(self.rule),
            "equation": equation(self.rule).splitlines(),
            "one_line": one_line(self.rule),
            "latex": latex(self.rule),
            "operands": [operand_row(operand) for operand in self.form.operands],
            "normal_form": str(self.form).splitlines(),
            "plan": {**asdict(self.plan), "rows": self.plan.rows},
            "sizes": asdict(self.sizes),
            "cost": asdict(self.cost),
            "spectrum": _spectrum_json(self.spectrum),
            "spectrum_gates_to_2": None if self.wide is None else _spectrum_json(self.wide),
        }


def describe(rule: Rule, sizes: Sizes | None = None, *, known_as: Sequence[str] = ()) -> Description:
    """The description of a rule; `sizes` are those its cost is told for, `known_as` names of the same rule.

    Errors: HoleError while holes are open.
    """
    form, given = lower(rule), sizes or Sizes()
    return Description(
        rule=rule,
        form=form,
        plan=chunk_plan(form),
        sizes=given,
        cost=cost(form, given),
        spectrum=spectrum(form),
        wide=spectrum(form, gate_range=WIDE) if _gated(form) else None,
        known_as=tuple(known_as),
    )


def operand_row(operand: Operand) -> dict[str, str]:
    """Name, kind, shape and range of an operand."""
    kind = operand.kind.value.replace("_", " ")
    per = " per channel" if operand.per == "channel" and operand.kind is not Kind.CHANNEL_GATE else ""
    return {"name": operand.name, "kind": kind + per, "shape": operand.shape, "range": RANGES[operand.kind]}


def _gated(form: NormalForm) -> bool:
    """Whether a gate takes part in what the token does to the state it finds."""
    terms = (term for row in form.rows if row.residual for term in (*row.write, *row.residual))
    return any(term.gates for term in terms)


def _spectrum_json(found: Spectrum) -> dict[str, Any]:
    names = {"contraction": found.contraction, "negative": found.negative, "rotates": found.rotates}
    steps = [{**asdict(step), "condition": step.condition} for step in found.steps]
    return {**asdict(found), **names, "steps": steps, "verdict": found.verdict, "tracking": found.tracking}
