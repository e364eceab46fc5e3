"""Where the products of a kernel's machine code find their tiles: which take a place that is none.

A product of a warp group (HGMMA) finds a tile by a pair of uniform registers: the low one holds an address in shared
memory, in units of 16 bytes and cut to 14 bits, the high one strides, which are constants. Every register is followed
along all paths to the products; one that has lost its place holds what something else left there, such as a pointer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

_LINE = re.compile(r"^\s*(\.L\w+):|/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+ )?\s*([A-Z][\w.]*)\s*(.*?);", re.MULTILINE)
_REGISTER = re.compile(r"(?<!\w)(U?R)(\d+|Z)\b")
_WHOLE = re.compile(r"[-~|]*(U?R)(\d+)(?:\.reuse)?(?:\.64)?\|?")
_PLACE = re.compile(r"gdesc\[UR(\d+)\]")
_LABEL = re.compile(r"`\((\.L\w+)\)")
_FRAME = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")
_LOADED = ("c[", "[", "SR_", "desc[")
_XOR = ("URZ, 0x3c, !UPT", "RZ, 0x3c, !PT")
_IN_MEMORY = ("[", "desc[")
_CUTS = (("SGXT.U32", "0xe"), ("LOP3.LUT", "0x3fff"))
_CLEARS = "CS2R"
"""Writes a pair, most often with zeros."""
_UNKNOWN, _VARIES, _NO_ADDRESS, _NO_PLACE = 1, 2, 4, 8
_CONSTANT = _NO_ADDRESS | _NO_PLACE
_OTHER = _CONSTANT | _VARIES
_UNWRITTEN = _OTHER | _UNKNOWN
"""What a register may hold, on any path, in bits: what nothing wrote; other than a constant; what is made from no
address; what was not cut to the bits of a place.
"""
_WINDOW = "SR_CgaCtaId"
"""What every address in shared memory is made from."""


@dataclass(slots=True)
class _Step:
    """One instruction: the registers it writes, for each those it is made from, and what its other operands are.

    `cuts`: it may cut an address to the bits of a place. `always`: under no condition. `places`: of a product, low and
    high registers of its tiles.
    """

    text: str
    writes: tuple[str, ...] = ()
    reads: tuple[tuple[str, ...], ...] = ()
    least: int = _CONSTANT
    cuts: bool = False
    always: bool = True
    places: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Block:
    """Instructions that follow one another, and the blocks that may come next."""

    steps: list[_Step] = field(default_factory=list[_Step])
    next: list[str] = field(default_factory=list[str])


def lost(text: str) -> list[str]:
    """The products of a listing, in its order, that on some path take a tile from what is no place in shared memory."""
    blocks = _blocks(text)
    first = next(iter(blocks))
    entries: dict[str, dict[str, int]] = {first: {}}
    waiting = [first]
    while waiting:
        name = waiting.pop()
        state = dict(entries[name])
        for step in blocks[name].steps:
            _follow(step, state)
        for after in blocks[name].next:
            if after not in entries:
                entries[after] = dict(state)
                waiting.append(after)
            elif _merged(entries[after], state):
                waiting.append(after)
    return [text for name, block in blocks.items() for text in _lost_in(block, dict(entries.get(name, {})))]


def tiles(operands: Sequence[str]) -> tuple[int, ...]:
    """The first of the two uniform registers by which a product finds each of its tiles in shared memory: the right
    one's, and before it the left one's where registers do not hold that.
    """
    at = next(place for place, operand in enumerate(operands) if _PLACE.match(operand))
    found = _PLACE.match(operands[at])
    assert found is not None
    first = int(found[1])
    held = any(re.fullmatch(r"R\d+", operand) for operand in operands[1:at])
    return (first + 2,) if held else (first, first + 2)


def _lost_in(block: _Block, state: dict[str, int]) -> list[str]:
    found: list[str] = []
    for step in block.steps:
        for low, high in step.places:
            if state.get(low, _UNWRITTEN) & (_UNKNOWN | _NO_PLACE) or state.get(high, _UNWRITTEN) & _VARIES:
                found.append(step.text)
                break
        _follow(step, state)
    return found


def _follow(step: _Step, state: dict[str, int]) -> None:
    """An instruction's result is what any operand makes it, or what was there where it may not run."""
    values: list[int] = []
    for reads in step.reads:
        some, every = step.least, step.least
        for register in reads:
            value = state.get(register, _UNWRITTEN)
            some, every = some | value, every & value
        value = some & (_UNKNOWN | _VARIES) | every & _CONSTANT
        values.append(value & ~_NO_PLACE if step.cuts and not value & _NO_ADDRESS else value)
    if not step.always:
        values = [value | state.get(register, _UNWRITTEN) for register, value in zip(step.writes, values, strict=True)]
    state.update(zip(step.writes, values, strict=True))


def _merged(entry: dict[str, int], state: dict[str, int]) -> bool:
    """Whether what comes by another path changes what a block begins with; changes it."""
    changed = False
    for register in entry.keys() | state.keys():
        old = entry.get(register, _UNWRITTEN)
        new = old | state.get(register, _UNWRITTEN)
        if new != old:
            entry[register] = new
            changed = True
    return changed


def _blocks(text: str) -> dict[str, _Block]:
    """The blocks of a listing by their labels, in order."""
    names = (f" {number}" for number in count())
    name = next(names)
    blocks = {name: _Block()}
    for label, condition, operation, rest in _LINE.findall(text):
        block = blocks[name]
        if label:
            block.next.append(label)
            name = label
            blocks[name] = _Block()
            continue
        if operation.startswith(("BRA", "CALL", "JMP", "EXIT", "RET", "BRX")):
            name = next(names)
            blocks[name] = _Block()
            block.next.extend(_LABEL.findall(rest))
            if condition or operation.startswith(("CALL", "BRA.DIV")) or "P" in rest.split("`")[0]:
                block.next.append(name)
            continue
        step = _step(operation, rest.strip())
        if step is not None:
            step.always = not condition
            block.steps.append(step)
            if operation.startswith(("ULOP3.LUT", "LOP3.LUT")) and rest.strip().endswith(_XOR):
                _exchange(block.steps)
    for block in blocks.values():
        block.next = [after for after in block.next if after in blocks]
    return blocks


def _exchange(steps: list[_Step]) -> None:
    """Two registers that change places by three exclusive ors, each of the two of them, do so at once."""
    last = steps[-1]
    pair = set(last.reads[0])
    if len(pair) != 2 or not pair.issuperset(last.writes):
        return
    places = [place for place, step in enumerate(steps) if pair.intersection(step.writes)][-3:]
    three = [steps[place] for place in places]
    one = last.writes[0]
    (other,) = pair - {one}
    if [step.writes for step in three if step.always] == [(one,), (other,), (one,)] and all(
        set(step.reads[0]) == pair for step in three
    ):
        del steps[places[2]], steps[places[1]], steps[places[0]]
        steps.append(_Step("exchange", (one, other), ((other,), (one,))))


def _step(operation: str, rest: str) -> _Step | None:
    """What is followed of an instruction; None where that is nothing."""
    operands = rest.split(", ")
    if operation.startswith("HGMMA"):
        return _product(operation, rest, operands)
    if operation.startswith("STL"):
        return _moved(operation, _framed(rest), operands[-1], to_frame=True)
    if operation.startswith("LDL"):
        return _moved(operation, _framed(rest), operands[0], to_frame=False)
    place = 1 if re.fullmatch(r"!?U?P\w+", operands[0]) and len(operands) > 1 else 0
    target = _WHOLE.fullmatch(operands[place])
    if target is None:
        return None
    sources = operands[place + 1 :]
    least = _CONSTANT
    if any(source.startswith(_LOADED) for source in sources):
        least = _OTHER & ~_NO_ADDRESS if _WINDOW in rest else _OTHER
    given = [(bank, int(number)) for bank, number in _REGISTER.findall(", ".join(sources)) if number != "Z"]
    if any(source.startswith(_IN_MEMORY) for source in sources):
        given = []  # what lies at an address is none
    writes = _beside(target[1], int(target[2]), _width(operation))
    reads = [tuple(f"{bank}{number}" for bank, number in given)] * len(writes)
    if operation.startswith("UIADD3.64"):
        reads[1] = tuple(f"{bank}{number + 1}" for bank, number in given)
    elif len(writes) > 1 and operation != _CLEARS:
        least |= _VARIES
    cuts = any(operation.lstrip("U").startswith(cut) and bits in sources for cut, bits in _CUTS)
    return _Step(operation, writes, tuple(reads), least, cuts)


def _product(operation: str, rest: str, operands: list[str]) -> _Step:
    """A product of a warp group: 64 rows of 128 threads' sums, in registers side by side."""
    into = _WHOLE.fullmatch(operands[0])
    columns = re.match(r"HGMMA\.64x(\d+)x", operation)
    assert into is not None and columns is not None
    sums = _beside(into[1], int(into[2]), int(columns[1]) // 2)
    places = tuple((f"UR{first}", f"UR{first + 1}") for first in tiles(operands))
    return _Step(f"{operation} {rest}", sums, ((),) * len(sums), _OTHER, places=places)


def _width(operation: str) -> int:
    """How many registers an instruction writes, at most."""
    if ".128" in operation or operation.startswith(("LDSM", "HMMA")):
        return 4
    return 2 if ".64" in operation or ".WIDE" in operation or operation == _CLEARS else 1


def _beside(bank: str, first: int, width: int) -> tuple[str, ...]:
    return tuple(f"{bank}{first + place}" for place in range(width))


def _framed(rest: str) -> int | None:
    """The offset of a thread's own memory that is loaded or stored; None where it is not known."""
    found = _FRAME.search(rest)
    return None if found is None else int(found[1] or "0", 16)


def _moved(operation: str, offset: int | None, operand: str, *, to_frame: bool) -> _Step:
    """Registers, or zeros, to a thread's own memory or registers from there."""
    register, places = _WHOLE.fullmatch(operand), range(_width(operation))
    held = [() if register is None else (f"R{int(register[2]) + place}",) for place in places]
    kept = [() if offset is None else (f"frame {offset + 4 * place}",) for place in places]
    writes, reads = (kept, held) if to_frame else (held, kept)
    least = _CONSTANT if to_frame or offset is not None else _OTHER
    return _Step(operation, sum(writes, ()), tuple(reads) if any(writes) else (), least)
