"""How operands, products and states are written: one notation for terminals and tables, one for LaTeX."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from archsearch.dsl.expressions import Expression, Term
from archsearch.dsl.operands import Operand

GREEK = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "eps": "ε",
    "eta": "η",
    "kappa": "κ",
    "lam": "λ",
    "mu": "μ",
    "nu": "ν",
    "omega": "ω",
    "phi": "φ",
    "psi": "ψ",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "theta": "θ",
    "xi": "ξ",
    "zeta": "ζ",
}
COMMANDS = {"eps": "varepsilon", "lam": "lambda"}
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
PRIMES = 3
"""States inside a token that are written with primes; where there are more, all are numbered."""


class Notation(ABC):
    """Text for the parts of an equation."""

    minus: str
    times: str
    hadamard: str
    identity = "I"
    before: str
    after: str

    @abstractmethod
    def symbol(self, name: str) -> str:
        """An operand's name: `lam` is λ, `k2` is k with the subscript 2."""

    @abstractmethod
    def state(self, index: int, of: int) -> str:
        """The state after `index` of the token's `of` changes."""

    @abstractmethod
    def transposed(self, text: str) -> str:
        """The transpose of an atom."""

    @abstractmethod
    def power(self, text: str, exponent: int) -> str:
        """`text` to a whole power."""

    @abstractmethod
    def exp(self, text: str) -> str:
        """e to the power of `text`."""

    @abstractmethod
    def diag(self, text: str) -> str:
        """The diagonal matrix of `text`."""

    @abstractmethod
    def over_root_k(self, text: str) -> str:
        """`text` divided by the square root of K."""

    @abstractmethod
    def inner(self, factors: tuple[str, ...]) -> str:
        """The sum over the channels of the product of `factors`."""

    @abstractmethod
    def quotient(self, text: str, least: str) -> str:
        """`text` over the larger of abs(n), what it is for values of 1, and `least`."""

    def number(self, value: float) -> str:
        """A number with six significant digits; very small and large ones with a power of ten."""
        digits, _, exponent = f"{value:.6g}".partition("e")
        shown = digits.replace("-", self.minus)
        if not exponent:
            return shown
        ten = self.power("10", int(exponent))
        return f"{shown.removesuffix('1')}{ten}" if abs(float(digits)) == 1 else f"{shown} {self.times} {ten}"

    def product(self, *factors: str) -> str:
        """Factors side by side."""
        return " ".join(factor for factor in factors if factor)

    def sum(self, parts: list[tuple[bool, str]]) -> str:
        """(is negative, text) of every part, joined by their signs; nothing is 0."""
        text = ""
        for negative, part in parts:
            joint = f" {self.minus if negative else '+'} " if text else self.minus * negative
            text += joint + part
        return text or "0"

    def expression(self, given: Expression) -> str:
        """A sum of gated vectors."""
        return self.sum([(term.coefficient < 0, self._term(term)) for term in given])

    def factor(self, given: Expression) -> str:
        """The same where it is multiplied: in parentheses unless it is one symbol with scalars before it."""
        single = len(given) == 1 and given[0].coefficient > 0 and all(gate.per == "head" for gate in given[0].gates)
        return self.expression(given) if single or not given else f"({self.expression(given)})"

    def atom(self, given: Expression) -> str:
        """The same where a transpose follows: in parentheses unless it is one symbol."""
        bare = len(given) == 1 and given[0].coefficient == 1.0 and not given[0].gates
        return self.expression(given) if bare or not given else f"({self.expression(given)})"

    def _term(self, term: Term) -> str:
        size = abs(term.coefficient)
        scalars = [gate for gate in term.gates if gate.per == "head"]
        channels = [gate for gate in term.gates if gate.per == "channel"]
        vectors = f" {self.hadamard} ".join(
            [*self._powers(channels), *([self.symbol(term.vector.name)] if term.vector else [])]
        )
        number = "" if size == 1.0 and (scalars or vectors) else self.number(size)
        return self.product(number, *self._powers(scalars), vectors)

    def _powers(self, gates: list[Operand]) -> list[str]:
        counts: dict[str, int] = {}
        for gate in gates:
            counts[gate.name] = counts.get(gate.name, 0) + 1
        return [self.symbol(name) if n == 1 else self.power(self.symbol(name), n) for name, n in counts.items()]


class Unicode(Notation):
    """For terminals, tables and pages."""

    minus = "−"
    times = "·"
    hadamard = "⊙"
    before = "Sₜ₋₁"
    after = "Sₜ"

    def symbol(self, name: str) -> str:
        """Greek letters and subscript digits where the name has them."""
        stem, digits = _split(name)
        return GREEK.get(stem, stem) + digits.translate(SUBSCRIPTS)

    def state(self, index: int, of: int) -> str:
        """Sₜ₋₁, S′, S″, Sₜ; with many changes S⁽¹⁾, S⁽²⁾."""
        if index in (0, of):
            return self.before if index == 0 else self.after
        return "S" + ("′″‴"[index - 1] if of - 1 <= PRIMES else f"⁽{str(index).translate(SUPERSCRIPTS)}⁾")

    def transposed(self, text: str) -> str:
        """With a raised T."""
        return f"{text}ᵀ"

    def power(self, text: str, exponent: int) -> str:
        """With a raised number."""
        return text + str(exponent).translate(SUPERSCRIPTS)

    def exp(self, text: str) -> str:
        """exp(x)."""
        return f"exp({text})"

    def diag(self, text: str) -> str:
        """Diag(x)."""
        return f"Diag({text})"

    def over_root_k(self, text: str) -> str:
        """x / √K."""
        return f"{text} / √K"

    def quotient(self, text: str, least: str) -> str:
        """(x) / max(abs(the same at v = 1), least)."""
        return f"({text}) / max(abs(the same at v = 1), {least})"

    def inner(self, factors: tuple[str, ...]) -> str:
        """Σ(x ⊙ y)."""
        return f"Σ({' ⊙ '.join(factors)})"


class Latex(Notation):
    """For papers."""

    minus = "-"
    times = r"\cdot"
    hadamard = r"\odot"
    before = "S_{t-1}"
    after = "S_t"

    def symbol(self, name: str) -> str:
        r"""`lam` is \lambda, `k2` is k_{2}, a word is upright."""
        stem, digits = _split(name)
        head, _, tail = stem.partition("_")
        text = f"\\{COMMANDS.get(head, head)}" if head in GREEK else head if len(head) == 1 else f"\\mathrm{{{head}}}"
        below = ",".join(part for part in (f"\\mathrm{{{tail}}}".replace("_", r"\_") if tail else "", digits) if part)
        return f"{text}_{{{below}}}" if below else text

    def state(self, index: int, of: int) -> str:
        """S_{t-1}, S', S'', S_t; with many changes S^{(1)}, S^{(2)}."""
        if index in (0, of):
            return self.before if index == 0 else self.after
        mark = r"\prime" * index if of - 1 <= PRIMES else f"({index})"
        return f"S^{{{mark}}}"

    def transposed(self, text: str) -> str:
        r"""With ^{\top}, inside the exponent where there is one."""
        return f"{text[:-1]}\\top}}" if text.startswith("S^{") else f"{text}^{{\\top}}"

    def power(self, text: str, exponent: int) -> str:
        """With ^{n}."""
        return f"{text}^{{{exponent}}}"

    def exp(self, text: str) -> str:
        r"""\exp(x)."""
        return f"\\exp({text})"

    def diag(self, text: str) -> str:
        r"""\mathrm{Diag}(x)."""
        return f"\\mathrm{{Diag}}({text})"

    def over_root_k(self, text: str) -> str:
        r"""x / \sqrt{K}."""
        return f"{text} / \\sqrt{{K}}"

    def quotient(self, text: str, least: str) -> str:
        r"""(x) / \max(|x at v = 1|, least)."""
        return f"({text}) / \\max(|\\text{{the same at }} v = 1|, {least})"

    def inner(self, factors: tuple[str, ...]) -> str:
        r"""\textstyle\sum_c of the product."""
        inside = " \\odot ".join(factors)
        return f"\\textstyle\\sum_c ({inside})_c"

    def product(self, *factors: str) -> str:
        """Factors with a thin space between them."""
        return r"\, ".join(factor for factor in factors if factor)


UNICODE: Notation = Unicode()
LATEX: Notation = Latex()


def _split(name: str) -> tuple[str, str]:
    """A name and the digits at its end; a name of digits and underscores alone stays whole."""
    match = re.fullmatch(r"(.*?[^\W\d_])_?(\d+)", name)
    return (match[1], match[2]) if match else (name, "")
