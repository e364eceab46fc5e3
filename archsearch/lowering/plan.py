"""The chunk plan: how many tokens a chunk takes, and what its rows are made of. Kernels are not here."""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.dsl.expressions import Expression, Term
from archsearch.lowering.normal_form import NormalForm, text

ROWS = 64
"""Rows a chunk aims at: the edge of one triangular system."""
LEAST_TOKENS = 16
"""What a matrix product takes."""


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """`tokens` a chunk, `substeps` rows a token. `bases` are the vectors in the key space that rows and read combine.

    `products` are the pairs of them, reader first, whose Gram matrices fill the triangle and the scores of the read.
    `triangle` says whether there is a triangular system at all: not without residuals.
    """

    tokens: int
    substeps: int
    decay: str
    bases: tuple[str, ...]
    products: tuple[tuple[str, str], ...]
    triangle: bool

    @property
    def rows(self) -> int:
        """Rows a chunk."""
        return self.tokens * self.substeps


def chunk_plan(form: NormalForm, chunk_size: int | None = None) -> ChunkPlan:
    """The plan of a rule; `chunk_size` replaces the tokens it would choose."""
    reads, writes = _bases(form.read.address), _bases(*(row.write for row in form.rows))
    residuals = _bases(*(row.residual for row in form.rows))
    readers = tuple(dict.fromkeys((*residuals, *reads)))
    return ChunkPlan(
        tokens=chunk_size or chunk_tokens(form),
        substeps=len(form.rows),
        decay=form.decay_kind,
        bases=tuple(dict.fromkeys((*reads, *writes, *residuals))),
        products=tuple((reader, written) for reader in readers for written in writes),
        triangle=any(row.write and row.residual for row in form.rows),
    )


def chunk_tokens(form: NormalForm) -> int:
    """Tokens a chunk: a power of two with at most 64 rows, at least 16."""
    return max(LEAST_TOKENS, ROWS >> (len(form.rows) - 1).bit_length())


def _bases(*expressions: Expression) -> tuple[str, ...]:
    """The vectors of some expressions with their channel gates, scalars left out: `k`, `q`, `b k`."""
    terms = (term for expression in expressions for term in expression)
    bases = (Term(1.0, tuple(gate for gate in term.gates if gate.per == "channel"), term.vector) for term in terms)
    return tuple(dict.fromkeys(text((base,)) for base in bases))
