"""The chunkwise form as code: the rows of one rule in straight lines, around an algebra that all rules share.

What a rule does not need is left out: exponents without a decay, the triangular solve without a residual.
"""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.dsl import Operand
from archsearch.lowering import NormalForm, Row
from archsearch.mixers.export.lines import Names, assign, call, terms, unpacked
from archsearch.mixers.export.rule_text import bonus

DOCUMENTATION = (
    '    """All tokens, chunk by chunk, in matrix products: the values of the token loop, differentiable by autograd.',
    "",
    "    A row is one change of the state, S <- S + address (target - S^T residual)^T. Rows of a chunk depend on each",
    "    other through a triangle, which is solved once; then the state goes from chunk to chunk.",
    '    """',
)


@dataclass(frozen=True, slots=True)
class Chunkwise:
    """What the text depends on."""

    form: NormalForm
    names: Names

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that change the state."""
        return tuple(row for row in self.form.rows if row.write and (row.target or row.residual))

    @property
    def solves(self) -> bool:
        """Whether a row reads the state, so that rows depend on each other."""
        return any(row.residual for row in self.rows)

    @property
    def kind(self) -> str:
        """`none`, `scalar` or `channel`, decays of 0 not counted."""
        return "none" if not any(decay.log_decay != 0.0 for decay in self.form.decays) else self.form.decay_kind

    @property
    def signed(self) -> bool:
        """Whether a decay has a sign."""
        return any(decay.sign is not None for decay in self.form.decays)

    @property
    def stages(self) -> int:
        """Groups of rows in a token."""
        return 1 + max((row.stage for row in self.form.rows), default=-1)

    def constants(self) -> str:
        """Which place of the token each row has: where it writes, what it sees; and the read's."""
        writes = ", ".join(str(row.stage) for row in self.rows)
        sees = ", ".join(str(0 if row.previous else row.stage) for row in self.rows)
        return "\n".join(
            [
                f"STAGES = {self.stages}  # groups of rows in a token; rows of one group do not see each other",
                f"WRITES = [{writes}]  # the group of each row",
                f"SEES = [{sees}]  # each row sees its own token's rows before this group, and all of earlier tokens",
                f"READS = {self.form.read.stage}  # likewise for the read",
                f"CHUNK = {max(8, 64 // max(1, len(self.form.rows)))}  # tokens a chunk of the torch form, by default",
            ]
        )

    def text(self) -> str:
        """The function `chunkwise`."""
        return "\n".join(
            [
                "def chunkwise(operands: Operands, state: Tensor, scale: float, chunk: int) -> tuple[Tensor, Tensor]:",
                *DOCUMENTATION,
                "    length = operands[0].shape[1]",
                "    chunk = min(chunk, length)",
                unpacked(self.names.all, "(chunked(x, chunk) for x in operands)"),
                *self._decays(),
                *self._rows(),
                *self._read(),
                *self._products(),
                *self._loop(),
                "    return output.flatten(2, 3)[:, :, :length].transpose(1, 2), state",
            ]
        )

    def _decays(self) -> list[str]:
        """Log decays accumulated since the chunk's start, at each place of the token; signs alike."""
        lines = ["", "    # log decay since the chunk's start"] if self.kind != "none" else []
        logs = [self._log(decay.log_decay) for decay in self.form.decays]
        if self.kind != "none":
            if any(isinstance(decay.log_decay, float) and decay.log_decay for decay in self.form.decays):
                lines.append("    present = chunked(state.new_ones(*operands[0].shape[:2], state.shape[1], 1), chunk)")
            lines += self._bounded()
            lines += self._places("log", logs, "cumsum", 0 if self.kind == "channel" else self._lowest)
        if self.signed:
            signs = [None if decay.sign is None else self.names[decay.sign] for decay in self.form.decays]
            lines += [
                f"    {sign} = torch.where({sign} == 0, 1.0, {sign})  # the padding"
                for sign in dict.fromkeys(filter(None, signs))
            ]
            lines += self._places("sign", signs, "cumprod", self._lowest)
        return lines

    def _bounded(self) -> list[str]:
        """No log decay below the one whose decay is 0: an infinite one would leave nan in the sums."""
        given = [decay.log_decay for decay in self.form.decays if isinstance(decay.log_decay, Operand)]
        logs = list(dict.fromkeys(self.names[operand] for operand in given))
        if not logs:
            return []
        first = ["    numbers = torch.finfo(state.dtype)"]
        first.append("    least = math.log(numbers.tiny * numbers.eps) - 1  # the decay is 0 from here on")
        return first + [f"    {log} = {log}.clamp(min=least)" for log in logs]

    def _log(self, given: Operand | float) -> str | None:
        if isinstance(given, Operand):
            return self.names[given]
        return None if given == 0.0 else f"{max(given, -745.0)!r} * present"

    def _places(self, prefix: str, factors: list[str | None], accumulate: str, lowest: int) -> list[str]:
        """The last place accumulates the token's points; each place before it takes one of them away again."""
        there = [factor for factor in factors if factor is not None]
        joined = (" + " if accumulate == "cumsum" else " * ").join(there)
        whole = joined if len(there) == 1 and joined.isidentifier() else f"({joined})"
        lines = [f"    {prefix}_{len(factors)} = {whole}.{accumulate}(dim=3)"]
        for place in range(len(factors) - 1, lowest - 1, -1):
            undo = {"cumsum": " - ", "cumprod": " * "}[accumulate]
            taken = "" if factors[place] is None else f"{undo}{factors[place]}"
            lines.append(f"    {prefix}_{place} = {prefix}_{place + 1}{taken}")
        return lines

    @property
    def _lowest(self) -> int:
        """The first place that is used."""
        used = [0 if row.previous else row.decays for row in self.rows] + [row.decays for row in self.rows]
        return min([*used, self.form.read.decays])

    def _rows(self) -> list[str]:
        lines = ["", f"    # the row{'s' if len(self.rows) > 1 else ''} of each token, and its read"]
        names: dict[str, list[str]] = {"address": [], "residual": [], "target": []}
        for i, row in enumerate(self.rows):
            suffix = "" if len(self.rows) == 1 else f"_{i}"
            seen = 0 if row.previous else row.decays
            parts = [("address", row.write, row.decays), ("residual", row.residual, seen), ("target", row.target, None)]
            for part, expression, place in parts:
                if part == "residual" and not self.solves:
                    continue
                lines.append(self._part(f"{part}{suffix}", terms(expression, self.names), place))
                names[part].append(f"{part}{suffix}")
        if len(self.rows) > 1:
            lines += [call(f"{part} = rows(", parts) for part, parts in names.items() if parts]
        return lines + self._row_decays()

    def _part(self, name: str, signed: list[str], place: int | None) -> str:
        """One part of a row; a part that is zero still has its shape."""
        if not signed:
            size = "state.shape[-1]" if name.startswith("target") else "state.shape[-2]"
            return f"    {name} = state.new_zeros(*{self.names.all[0]}.shape[:4], {size})"
        if self.signed and place is not None:
            whole = " ".join(signed)
            signed = [f"sign_{place} * {whole if len(signed) == 1 else f'({whole})'}"]
        return assign(name, signed)

    def _row_decays(self) -> list[str]:
        """`log_write` and `log_seen`: the log decay at which each row writes, and at which it reads."""
        if self.kind == "none":
            return []
        writes = [f"log_{row.decays}" for row in self.rows]
        seen = [f"log_{0 if row.previous else row.decays}" for row in self.rows]
        joined = [("log_write", writes)] + ([("log_seen", seen)] if self.solves else [])
        return [call(f"{name} = rows(", places) for name, places in joined] if len(self.rows) > 1 else []

    @property
    def _log_write(self) -> str:
        return f"log_{self.rows[0].decays}" if len(self.rows) == 1 else "log_write"

    @property
    def _log_seen(self) -> str:
        return f"log_{0 if self.rows[0].previous else self.rows[0].decays}" if len(self.rows) == 1 else "log_seen"

    def _read(self) -> list[str]:
        read = self.form.read
        lines = [self._part("query", terms(read.address, self.names), None)]
        lines += bonus(read, self.names, "query") if read.address else []
        if self.signed:
            lines.append(f"    query = sign_{read.decays} * query")
        return lines

    def _products(self) -> list[str]:
        """L, its solve, and P: everything about a chunk that does not wait for the state."""
        if not self.rows:
            return []
        lines = ["", "    # what a row meets of the rows before it, and a read of the rows"]
        lines.append(f"    {'sees' if self.solves else '_'}, reads = order(chunk, state.device)")
        if self.solves:
            known = "residual" if self.kind == "none" else f"residual * {self._log_seen}.exp()"
            lines += [
                f"    lower = {self._gram('residual', self._log_seen, 'sees')}",
                f"    known = torch.cat([target, {known}], dim=-1)",
                "    solved = torch.linalg.solve_triangular(lower, known, upper=False, unitriangular=True)",
                "    target, residual = solved.split([target.shape[-1], residual.shape[-1]], dim=-1)",
            ]
        return [*lines, f"    scores = {self._gram('query', f'log_{self.form.read.decays}', 'reads')}"]

    def _gram(self, x: str, place: str, seen: str) -> str:
        if self.kind == "none":
            return f"gram({x}, address, {seen})"
        entry = ", log_0" if self.kind == "channel" else ""
        return f"gram({x}, {place}, address, {self._log_write}, {seen}{entry})"

    def _loop(self) -> list[str]:
        """The state from chunk to chunk, then the output of all chunks."""
        decayed = self.kind != "none"
        lines = ["", "    # the state, from chunk to chunk"]
        if decayed:
            lines.append(f"    end = log_{len(self.form.decays)}[..., -1:, :]")
            if self.rows:
                lines.append(f"    leaving = (address * (end - {self._log_write}).exp()).transpose(-1, -2)")
            lines.append("    keep = end.exp().transpose(-1, -2)")
            lines.append(f"    query = query * log_{self.form.read.decays}.exp()")
        elif self.rows:
            lines.append("    leaving = address.transpose(-1, -2)")
        if self.signed:
            turned = f"sign_{len(self.form.decays)}[..., -1:, :].transpose(-1, -2)"
            lines.append(f"    flip = {turned}")
        lines += [
            "    entering, written = [], []" if self.rows else "    entering = []",
            "    for n in range(query.shape[2]):",
        ]
        lines.append("        entering.append(state)")
        if self.rows:
            lines.append(
                f"        written.append(target[:, :, n]{' - residual[:, :, n] @ state' if self.solves else ''})"
            )
        kept = "keep[:, :, n] * state" if decayed else "state"
        added = " + leaving[:, :, n] @ written[-1]" if self.rows else ""
        change = f"{kept}{added}"
        if self.signed:
            change = f"flip[:, :, n] * ({change})" if self.rows else f"flip[:, :, n] * {change}"
        lines += [f"        state = {change}"] if change != "state" else []
        parts = ["query @ torch.stack(entering, dim=2)"]
        parts += ["+ scores @ torch.stack(written, dim=2)"] if self.rows else []
        parts += ["+ extra"] if bonus(self.form.read, self.names, "query") and self.form.read.address else []
        return [*lines, assign("output", parts), "    output = scale * output"]
