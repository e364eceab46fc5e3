"""Long tokens of a rule as code: the operands of the shorter tokens that its kernels take instead."""

from __future__ import annotations

from archsearch.dsl import Kind, Operand, Term
from archsearch.kernels.triton.cutting import Cut, Number, Part, Point, Vector
from archsearch.lowering import Decay
from archsearch.mixers.export.lines import Group, Names, laid_out, terms, unpacked
from archsearch.mixers.export.templates import template


def longer_text(cut: Cut, operands: tuple[Operand, ...], names: Names) -> str:
    """The function `longer` and what it calls. operands: of the rule."""
    address = next(names[operand] for operand in operands if operand.is_address)
    values = [names[operand] for operand in operands if operand.kind is Kind.VALUE]
    writer = _Writer(cut, names, address, values[0] if values else address)
    body = [
        "def longer(operands: Operands, state: Tensor) -> list[Tensor]:",
        f'    """The operands of the kernels: for each token those of {cut.times} of at most four rows."""',
        unpacked(names.all, "spread(operands, state)"),
        *laid_out(Group("return [", tuple(writer.operands()), "]")),
    ]
    return "\n\n\n".join([template("longer"), "\n".join(body)])


def longer_operations(cut: Cut) -> str:
    """The function that runs the kernels."""
    numbers = {"times": cut.times, "spare": cut.spare, "reads_at": cut.reads_at}
    return template("longer_operations", **{name: str(number) for name, number in numbers.items()})


class _Writer:
    """Each operand of the cut form as a call of `beside`; `address` and `value` are variables of that shape."""

    def __init__(self, cut: Cut, names: Names, address: str, value: str) -> None:
        self.cut, self.names, self.address, self.value = cut, names, address, value

    def operands(self) -> list[Group]:
        """In the order of the cut form."""
        texts = {vector.operand: self._vector(vector) for vector in self.cut.vectors}
        texts |= {number.operand: self._number(number) for number in self.cut.numbers}
        for point in self.cut.points:
            texts |= self._point(point)
        return [texts[operand] for operand in self.cut.form.operands]

    def _vector(self, vector: Vector) -> Group:
        wide = vector.operand.is_address
        like = self.address if wide else self.value
        parts = [self._part(part, wide=wide) for part in vector.parts]
        return _beside(self._padded(like) if wide else like, parts, f").to(operands.{like}.dtype)")

    def _part(self, part: Part | None, *, wide: bool) -> str:
        text = " ".join(terms(part.split.vector, self.names)) if part else ""
        if not wide or not self.cut.spare or part is None:
            return text or "0.0"
        return self._padded(text or f"torch.zeros_like({self.address})", part)

    def _padded(self, text: str, part: Part | None = None) -> str:
        if not self.cut.spare:
            return text
        entry = f", {part.spare.channel}, {part.spare.coefficient!r}" if part and part.spare else ""
        return f"spare({text}, {self.cut.spare}{entry})"

    def _number(self, number: Number) -> Group:
        parts = [
            " ".join(terms((Term(part.split.coefficient, part.split.gates, None),), self.names)) if part else "0.0"
            for part in number.parts
        ]
        return _beside(f"{self.address}[..., :1]", parts, ")[..., 0]")

    def _point(self, point: Point) -> dict[Operand, Group]:
        logs = {point.operand: self._decays(point, [self._log(decay) for decay in point.parts], "0.0")}
        if point.operand.sign is None:
            return logs
        signs = [self.names[decay.sign] if decay and decay.sign else "1.0" for decay in point.parts]
        return logs | {point.operand.sign: self._decays(point, signs, "1.0")}

    def _log(self, decay: Decay | None) -> str:
        if decay is None:
            return "0.0"
        return self.names[decay.log_decay] if isinstance(decay.log_decay, Operand) else repr(decay.log_decay)

    def _decays(self, point: Point, parts: list[str], neutral: str) -> Group:
        """Numbers a head, or as wide as the addresses; spare channels, which come last, are neutral."""
        if point.operand.per == "head":
            return _beside(f"{self.address}[..., :1]", parts, ")[..., 0]")
        if not self.cut.spare:
            return _beside(self.address, parts)
        return Group("F.pad(", (_beside(self.address, parts), f"(0, {self.cut.spare})", f"value={neutral}"), ")")


def _beside(like: str, parts: list[str], after: str = ")") -> Group:
    return Group("beside(", (like, *parts), after)
