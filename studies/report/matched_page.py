"""Whether what is compared had equal budgets: sizes and costs of finalists and baselines beside the reference's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archsearch.report.page import Block, Section, Text
from archsearch.report.tables import Cell, Column, Table
from archsearch.studies.evidence.conclusions import Conclusions
from archsearch.studies.evidence.rows import Evidence, Row
from archsearch.studies.evidence.wording import spoken
from archsearch.studies.training.language import COUNTS

UNITS = {"flops_per_token": "forward"}

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Matched:
    """What a variant costs. costs: parameters, FLOPs of a token forward, bytes of state. off: each over that of the
    reference, less 1; none of the reference itself. width, mlp_ratio: of the model.
    """

    name: str
    is_baseline: bool
    is_reference: bool
    costs: Mapping[str, float]
    off: Mapping[str, float]
    tokens: int
    width: int | None
    mlp_ratio: float | None


def matched(evidence: Evidence, rows: Sequence[tuple[str, Row]], reference: str) -> list[Matched]:
    """One entry for each named trial with counts, the reference first; none where the reference has no counts."""
    known = [(name, row, _costs(row)) for name, row in rows]
    known = [(name, row, costs) for name, row, costs in known if costs]
    base = next((costs for name, _, costs in known if name == reference), None)
    if base is None:
        return []
    ordered = sorted(known, key=lambda each: each[0] != reference)
    return [
        Matched(
            name=name,
            is_baseline=evidence.is_of_baseline(row),
            is_reference=name == reference,
            costs=costs,
            off={} if name == reference else {key: costs[key] / base[key] - 1 for key in costs if base.get(key)},
            tokens=row.tokens,
            width=row.model.get("width"),
            mlp_ratio=row.model.get("mlp_ratio"),
        )
        for name, row, costs in ordered
    ]


def _costs(row: Row) -> dict[str, float]:
    return {name: float(row.details[name]) for name in COUNTS if row.details.get(name) is not None}


def compared(evidence: Evidence, concluded: Conclusions | None) -> list[tuple[str, Row]]:
    """Who is compared, by name: the entrants; of a search its baselines and as many of the best as finals would take.

    Each with a trial that reached its whole budget.
    """
    if concluded is not None:
        return [(name, s.complete[0]) for name, s in concluded.standings.items() if s.complete]
    ranked = [row for _, row in evidence.ranking]
    most = int(evidence.plan.get("config", {}).get("finalists", 3))
    best = [row for row in ranked if not row.is_baseline][:most]
    baselines = [(row.name, row) for row in ranked if row.is_baseline]
    return baselines + [(f"{row.name} (trial {row.number})", row) for row in best]


def matched_section(evidence: Evidence, concluded: Conclusions | None = None) -> list[Section]:
    """The table with what was matched and what was not in words; nothing without a baseline to compare with."""
    found, row = _against_reference(evidence, concluded)
    if row is None:
        return []
    blocks: list[Block] = [Text(_asked_words(row), quiet=True)]
    said = _unequal_words(found, row)
    blocks += [Text(said, warning=True)] if said else []
    return [Section("Matched budgets", [*blocks, _table(found)])]


def unequal(evidence: Evidence, concluded: Conclusions | None = None) -> str:
    """In which quantities the compared are not equal, in words; empty where they are or nothing is compared."""
    found, row = _against_reference(evidence, concluded)
    return "" if row is None else _unequal_words(found, row)


def _against_reference(evidence: Evidence, concluded: Conclusions | None) -> tuple[list[Matched], Row | None]:
    """Who is compared, and a trial that says what was asked of all; None where there are not two to compare."""
    rows = compared(evidence, concluded)
    reference = evidence.against if concluded is None else concluded.against
    found = matched(evidence, rows, reference or "")
    return found, rows[0][1] if len(found) > 1 else None


def _asked_words(row: Row) -> str:
    """What sizes were solved for."""
    asked = {name: row.budget[name] for name in COUNTS if row.budget.get(name) is not None}
    if not asked:
        return "The budget matches no quantity but the training tokens: sizes are as the space writes them."
    parts = [f"{spoken(name)} ({_target(value)})" for name, value in asked.items()]
    tolerance = float(row.budget.get("tolerance", 0.0))
    return (
        f"Sizes are solved for equal {' and '.join(parts)}, within {tolerance:.1%}; training tokens are equal. Other "
        "quantities fall as they do."
    )


def _target(value: object) -> str:
    return f"that of {value}" if isinstance(value, str) else f"{value:,}"


def _unequal_words(found: Sequence[Matched], row: Row) -> str:
    """Quantities in which somebody is further from the reference than the tolerance."""
    tolerance = float(row.budget.get("tolerance", 0.01))
    said: list[str] = []
    for name in COUNTS:
        furthest = max(found, key=lambda each: abs(each.off.get(name, 0.0)))
        share = furthest.off.get(name, 0.0)
        if abs(share) > tolerance + ROUNDING:
            said.append(f"{spoken(name)} by up to {share:+.1%} ({furthest.name})")
    return f"Not equal: {'; '.join(said)}. Part of a difference in quality may be one of size." if said else ""


def _table(found: Sequence[Matched]) -> Table:
    columns = [Column("name", "variant", wide=True)]
    for name in COUNTS:
        columns.append(Column(name, spoken(name), digits=0, unit=UNITS.get(name, "")))
        columns.append(Column(f"{name}_off", "off", digits=1, percent=True))
    columns += [
        Column("tokens", "tokens"),
        Column("width", "width"),
        Column("mlp_ratio", "MLP ratio", digits=2),
        Column("is", ""),
    ]
    rows = [_row(each) for each in found]
    return Table("matched", columns, rows, {i: "baseline" for i, each in enumerate(found) if each.is_baseline})


def _row(each: Matched) -> dict[str, Cell]:
    row: dict[str, Cell] = {"name": each.name, "is": "reference" if each.is_reference else ""}
    for name in COUNTS:
        row[name] = round(each.costs[name]) if name in each.costs else None
        row[f"{name}_off"] = each.off.get(name)
    return {**row, "tokens": each.tokens, "width": each.width, "mlp_ratio": each.mlp_ratio}
