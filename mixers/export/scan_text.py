"""The scans of an export: archsearch's own modules, linked into one namespace."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from archsearch.mixers.export.linking import Source, defined_in, linked, sources

PACKAGE = "archsearch.kernels.scan"
HEAD = """\
# Scans of vectors whose channels decay each on its own, in PyTorch and in Triton. T tokens, C channels, N numbers of
# a state's channel; BT, BC and BN those of a block. Tensors lie as [B * T, C or N].
# fmt: off"""


@cache
def scan_pieces() -> tuple[str, ...]:
    """The PyTorch form, the kernels, and what launches them."""
    blocked = Source.of("blocked", files(PACKAGE).joinpath("blocked.py").read_text(encoding="utf-8"), PACKAGE)
    return tuple(linked([blocked, *sources(PACKAGE, "launching", ())], ()))


def scan_names() -> frozenset[str]:
    """Every name that they define."""
    return frozenset(name for piece in scan_pieces() for name in defined_in(piece))


def scan_text() -> str:
    """The section of the file."""
    return "\n\n\n".join([HEAD, *scan_pieces(), "# fmt: on"])
