"""What the assembler made of a kernel: whether a uniform register is read that nothing wrote, or a tile is lost.

The assembler of Triton 3.6 and 3.7 (ptxas 12.8) may lose the place of a tile in shared memory, where two loops of a
kernel have their tiles at one address: products of the second loop then take whatever the register was left with, by
the last program or by this one, and give numbers that no test of another size would find wrong. Nothing but the machine
code tells.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, cast

import triton

from archsearch.errors import BackendError
from archsearch.kernels.triton import product_tiles

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?\s*([A-Z][\w.]*)\s*(.*?);")
_REGISTERS = re.compile(r"(gdesc|desc)?\[?\bUR(\d+)\b(\.64)?")
_MOVED = ("S2UR", "R2UR", "P2UR", "VOTEU", "REDUX", "CREDUX")
_ONLY_READING = ("UTMA", "UBLKCP", "UBLKPF", "UBLKRED", "UCGABAR", "USETMAXREG")
_VERDICT = "sound places"


def sound(kernel: Any) -> bool:
    """Whether a compiled kernel reads no uniform register before it is written and finds every tile where it lies;
    found once, kept in Triton's cache.

    Kernels without products of whole warp groups, and those for other than NVIDIA's devices, have no such places.

    Errors: BackendError where the listing cannot be made.
    """
    code = kernel.asm.get("cubin")
    if code is None or "wgmma" not in kernel.asm["ptx"]:
        return True
    kept = cast(Any, triton).runtime.cache.get_cache_manager(hashlib.sha256(code).hexdigest())
    place = kept.get_file(_VERDICT)
    if place is not None:
        return Path(place).read_text(encoding="utf-8") == "1"
    text = listing(code)
    found = not unwritten(text) and not product_tiles.lost(text)
    kept.put(str(int(found)), _VERDICT, binary=False)
    return found


def listing(code: bytes) -> str:
    """The instructions of a cubin, by the disassembler that Triton brings."""
    tool = cast(Any, triton).knobs.nvidia.nvdisasm.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        try:
            return subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise BackendError(
                f"compiled kernels are looked through before they run, by {tool}; it failed: {error}. "
                "Install Triton anew, or set TRITON_NVDISASM_PATH to a working nvdisasm"
            ) from error


def unwritten(text: str) -> list[str]:
    """The instructions of a listing, in their order, that read a uniform register which none before them wrote."""
    written: set[int] = set()
    found: list[str] = []
    for operation, rest in _INSTRUCTION.findall(text):
        reads, writes = _uses(operation, [operand.strip() for operand in rest.split(",")])
        if reads - written:
            found.append(f"{operation} {rest.strip()}")
        written |= writes
    return found


def _uses(operation: str, operands: list[str]) -> tuple[set[int], set[int]]:
    """Uniform registers that an instruction reads, and that it writes.

    Of instructions whose sources are not all known to be pairs the first register alone is taken for read: what is said
    to be lost is lost.
    """
    uniform = (operation.startswith("U") and not operation.startswith(_ONLY_READING)) or operation.startswith(_MOVED)
    written = 2 if ".64" in operation or ".WIDE" in operation else 1
    read = 2 if operation.startswith("UIADD3.64") else 1
    reads: set[int] = set()
    writes: set[int] = set()
    for place, operand in enumerate(operands):
        for kind, number, pair in _REGISTERS.findall(operand):
            first = int(number)
            if uniform and place == 0:
                writes |= set(range(first, first + written))
            elif kind == "gdesc":
                reads |= {low + half for low in product_tiles.tiles(operands) for half in (0, 1)}
            else:
                reads |= set(range(first, first + (2 if kind or pair else read)))
    return reads, writes
