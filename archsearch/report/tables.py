"""Tables: one description, written as HTML, CSV, JSON and Markdown."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeGuard

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column. key: of the rows. title: of the head. digits: decimals of numbers; None shows 4 significant digits.

    percent: numbers are shares, shown as percent. points: they are differences of shares, shown in hundredths. bar:
    numbers are drawn as bars too, from 0 to the column's largest. unit: of the numbers, in the head. wide: words that
    should not be broken into many lines. quiet: in grey. aside: in a second table, folded away below the first one.
    """

    key: str
    title: str
    digits: int | None = None
    percent: bool = False
    points: bool = False
    bar: bool = False
    unit: str = ""
    wide: bool = False
    quiet: bool = False
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. name: of the files. marks: a CSS class by row index, as `winner`."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    marks: Mapping[int, str]

    def html(self) -> str:
        """The table, numbers right-aligned, in a box that scrolls sideways on a narrow screen. What is aside is folded
        away below it, beside the columns up to the first wide one, which name the rows.
        """
        shown_first = [column for column in self.columns if not column.aside]
        aside = [column for column in self.columns if column.aside]
        if not aside:
            return self._box(shown_first)
        names = next((i for i, column in enumerate(shown_first) if column.wide), 0) + 1
        more = ", ".join(column.title for column in aside)
        folded = self._box([*shown_first[:names], *aside])
        return f"{self._box(shown_first)}<details><summary>More: {escape(more)}</summary>{folded}</details>"

    def _box(self, shown_columns: Sequence[Column]) -> str:
        columns = [(column, _side(self, column)) for column in shown_columns]
        head = "".join(f"<th{side}>{_title(column)}</th>" for column, side in columns)
        body = "".join(self._row(index, row, columns) for index, row in enumerate(self.rows))
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

    def csv(self) -> str:
        """The table with full precision, keys as head."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([column.key for column in self.columns])
        writer.writerows(
            [["" if row.get(c.key) is None else row.get(c.key) for c in self.columns] for row in self.rows]
        )
        return out.getvalue()

    def json(self) -> str:
        """The table as a list of objects with full precision."""
        rows = [{column.key: row.get(column.key) for column in self.columns} for row in self.rows]
        return json.dumps(rows, indent=1) + "\n"

    def markdown(self) -> str:
        """The table as a page shows it, numbers right-aligned; columns without a value left out."""
        columns = [column for column in self.columns if any(row.get(column.key) is not None for row in self.rows)]
        rules = ["---:" if _is_numeric(self, column) else "---" for column in columns]
        lines = [[f"{column.title} {column.unit}".strip() for column in columns], rules]
        lines += [[_in_a_cell(shown(row.get(c.key), c)) for c in columns] for row in self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def _row(self, index: int, row: Mapping[str, Cell], columns: Sequence[tuple[Column, str]]) -> str:
        mark = self.marks.get(index)
        cells = "".join(f"<td{side}>{self._cell(column, row.get(column.key))}</td>" for column, side in columns)
        return f'<tr class="{escape(mark)}">{cells}</tr>' if mark else f"<tr>{cells}</tr>"

    def _cell(self, column: Column, value: Cell) -> str:
        text = escape(shown(value, column))
        if not column.bar or not _is_number(value):
            return text
        largest = max((abs(v) for row in self.rows if _is_number(v := row.get(column.key))), default=0.0)
        share = abs(value) / largest if largest else 0.0
        return f'<span class="bar" style="--share:{share:.3f}">{text}</span>'


def shown(value: Cell, column: Column) -> str:
    """A cell as text: a dash for nothing, a number by its column's rule."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return str(value)
    if column.percent:
        return f"{100 * value:.{1 if column.digits is None else column.digits}f} %"
    if column.points:
        return f"{100 * value:.{1 if column.digits is None else column.digits}f}"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    return f"{value:.4g}" if column.digits is None else f"{value:.{column.digits}f}"


def _title(column: Column) -> str:
    unit = f' <span class="unit">{escape(column.unit)}</span>' if column.unit else ""
    return escape(column.title) + unit


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _is_numeric(table: Table, column: Column) -> bool:
    """Whether a column holds numbers alone, and one at least."""
    values = [row.get(column.key) for row in table.rows]
    return all(value is None or _is_number(value) for value in values) and any(v is not None for v in values)


def _side(table: Table, column: Column) -> str:
    numeric = _is_numeric(table, column)
    given = (("number", numeric), ("wide", column.wide and not numeric), ("quiet", column.quiet))
    names = " ".join(name for name, is_given in given if is_given)
    return f' class="{names}"' if names else ""


def _is_number(value: Cell) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
