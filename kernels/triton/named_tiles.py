"""Whether the products of a kernel's machine code take the tiles that its PTX names, one after another.

PTX names the tile of a product of a warp group by a number made from the address of shared memory; both listings are
evaluated with that address put in. A number that changes from turn to turn, such as a stage of a ring of tiles, is
known up to a multiple of its steps: another stage of the right ring is not told from the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd

from archsearch.kernels.triton.product_tiles import Block, Step, blocks, flow

Number = tuple[int, int]
"""A number, and the steps by an unknown multiple of which it may lie further; 0: none, 1: nothing is known."""
Product = tuple[str, tuple[tuple[Number, Number], ...]]
"""The extents of a product, and low and high halves of what names each of its tiles."""

_UNKNOWN: Number = (0, 1)
_SHARED: Number = (0x400, 0)
"""Where shared memory begins for a program that is alone in its cluster."""
_PLACE = 0x3FFF
"""The bits of a place."""
_MADE = re.compile(r"^\s*([a-z]\w*(?:\.\w+)*)\s+(%\w+), (.*?);", re.MULTILINE)
_TURN = re.compile(
    r"wgmma\.mma_async\.\S*?\.m(?P<extents>\d+n\d+k\d+)\.\S+ \{[^}]*\}, (?:\{[^}]*\}, )?(?P<operands>.*?);"
    r"|^(?P<label>\$\w+):|bra(?:\.uni)?\s+(?P<target>\$\w+);",
    re.MULTILINE,
)
_OPERAND = re.compile(r"(-?)(U?R)(\d+|Z)(?:\.reuse)?")
_PREDICATE = re.compile(r"!?U?P[\dT]")
_MOVES = ("exchange", "STL", "LDL")
_FOLLOWED = {
    *_MOVES,
    "MOV",
    "R2UR",
    "S2R",
    "S2UR",
    "CS2R",
    "IADD3",
    "VIADD",
    "IMAD",
    "LEA",
    "SHF",
    "SGXT",
    "LOP3",
    "SEL",
}
_EXTENTS = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)")


def misplaced(ptx: str, listing: str) -> list[str]:
    """The first product of a listing that takes other tiles than those that are next in PTX, if any does.

    Next is what follows in the text or, where a loop of PTX ends, its first product again: loops may be unrolled.
    """
    named, after = _named(ptx)
    at = {-1}
    for text, product in _taken(blocks(listing)):
        at = {place for before in at for place in after[before] if named[place] == product}
        if not at:
            return [text]
    return [] if len(named) - 1 in at else ["the end"]


def _named(ptx: str) -> tuple[list[Product], dict[int, set[int]]]:
    """The products of PTX in its order, and those that may come after each of them."""
    made: dict[str, list[tuple[str, list[str]]]] = {}
    for operation, register, rest in _MADE.findall(ptx):
        made.setdefault(register, []).append((operation, rest.split(", ")))
    values: dict[str, Number] = {"global_smem": _SHARED}
    products: list[Product] = []
    labels: dict[str, int] = {}
    after: dict[int, set[int]] = {-1: {0}}
    for turn in _TURN.finditer(ptx):
        place = len(products)
        if turn["label"]:
            labels[turn["label"]] = place
        elif turn["target"] and labels.get(turn["target"], place) < place:
            after[place - 1].add(labels[turn["target"]])
        elif turn["operands"]:
            operands = turn["operands"].split(", ")[:2]
            tiles = [_made(operand, made, values) for operand in operands if operand.startswith("%rd")]
            halves = tuple(((low & 0xFFFFFFFF, steps), (low >> 32, 0)) for low, steps in tiles)
            products.append((re.sub("[nk]", "x", turn["extents"]), halves))
            after[place] = {place + 1}
    after[len(products) - 1].discard(len(products))
    return products, after


def _made(operand: str, made: dict[str, list[tuple[str, list[str]]]], values: dict[str, Number]) -> Number:
    """What an operand of PTX holds; nothing is known of a register that several instructions write."""
    if not operand.startswith("%") and operand not in values:
        return _number(operand, 64)
    if operand not in values:
        values[operand] = _UNKNOWN
        if len(made.get(operand, ())) == 1:
            ((operation, operands),) = made[operand]
            given = [_made(each, made, values) for each in operands]
            values[operand] = _cut(_computed(operation, given), 64 if operation.endswith("64") else 32)
    return values[operand]


def _computed(operation: str, given: list[Number]) -> Number:
    """What an instruction of PTX writes."""
    match operation.split("."), given:
        case ["mov" | "cvt", *_], [one]:
            return one
        case ["add", *_], [one, other]:
            return _sum(one, other)
        case ["sub", *_], [one, other]:
            return _sum(one, _times(other, (-1, 0)))
        case ["or", *_], [one, other]:
            return _joined(one, other)
        case ["and", *_], [one, other]:
            return _masked(one, other)
        case ["shl", *_], [one, (bits, 0)]:
            return _times(one, (1 << bits, 0))
        case ["shr", *_], [one, (bits, 0)]:
            return _shifted(one, bits)
        case ["bfe", "u32"], [one, (bits, 0), (width, 0)]:
            return _masked(_shifted(one, bits), ((1 << width) - 1, 0))
        case ["mul", "lo", _], [one, other]:
            return _times(one, other)
        case ["mad", "lo", _], [one, other, third]:
            return _sum(_times(one, other), third)
        case _:
            return _UNKNOWN


def _taken(given: dict[str, Block]) -> Iterator[tuple[str, Product]]:
    """The products of machine code in its order, each with its text."""
    steps = [step for block in given.values() for step in block.steps]
    needed = {register for step in steps for halves in step.places for register in halves}
    size = 0
    while size < len(needed):
        size = len(needed)
        for step in steps:
            if _kind(step) not in _FOLLOWED:
                continue
            for register, reads in zip(step.writes, step.reads, strict=True):
                if register in needed:
                    needed.update(reads)
    for block in given.values():
        block.steps = [step for step in block.steps if step.places or not needed.isdisjoint(step.writes)]
    entries = flow(given, _follow, _merged)
    for name, block in given.items():
        state = dict(entries.get(name, {}))
        for step in block.steps:
            if extents := _EXTENTS.match(step.text):
                halves = [tuple(state.get(half, _UNKNOWN) for half in tile) for tile in step.places]
                yield step.text, ("x".join(extents.groups()), tuple((low, high) for low, high in halves))
            _follow(step, state)


def _kind(step: Step) -> str:
    return step.text.partition(".")[0].removeprefix("U")


def _follow(step: Step, state: dict[str, Number]) -> None:
    if _kind(step) not in _FOLLOWED:
        state.update(dict.fromkeys(step.writes, _UNKNOWN))
        return
    values = _written(step, state)
    for register, value in zip(step.writes, values, strict=True):
        held = _cut(value, 32)
        state[register] = held if step.always else _either(held, state.get(register, _UNKNOWN))


def _merged(entry: dict[str, Number], state: dict[str, Number]) -> bool:
    """Whether what comes by another path changes what a block begins with; changes it."""
    changed = False
    for register, old in entry.items():
        new = _either(old, state.get(register, _UNKNOWN))
        if new != old:
            entry[register] = new
            changed = True
    return changed


def _written(step: Step, state: dict[str, Number]) -> list[Number]:
    """What an instruction of machine code writes to each of its registers."""
    kind = step.text.removeprefix("U")
    if kind.startswith(_MOVES):
        nothing = (0, 0) if kind.startswith("STL") else _UNKNOWN
        return [state.get(reads[0], _UNKNOWN) if reads else nothing for reads in step.reads]
    operands = [operand for operand in step.operands if not _PREDICATE.fullmatch(operand)][1:]
    low = [_held(operand, state) for operand in operands]
    if kind == "IADD3.64":
        return _halves([_whole(operand, state) for operand in operands])
    match kind.split("."), low:
        case _ if len(step.writes) > 1:
            value = (0, 0) if operands == ["SRZ"] else _UNKNOWN
        case ["MOV" | "R2UR", *_], [value, *_]:
            pass
        case ["S2R" | "S2UR", *_], _ if operands == ["SR_CgaCtaId"]:
            value = (0, 0)
        case ["IADD3" | "VIADD", *_], _:
            value = (0, 0)
            for each in low:
                value = _sum(value, each)
        case ["IMAD", *modes], [one, other, third] if "HI" not in modes:
            value = _sum(_times(one, other), third)
        case ["LEA"], [one, other, (bits, 0)]:
            value = _sum(_times(one, (1 << bits, 0)), other)
        case ["LEA", "HI"], [one, other, (0, 0), (bits, 0)]:
            value = _sum(_shifted(one, 32 - bits), other)
        case ["SHF", "R", "U32", "HI"], [(0, 0), (bits, 0), one]:
            value = _shifted(one, bits)
        case ["SHF", "L", "U32"], [one, (bits, 0), _]:
            value = _times(one, (1 << bits, 0))
        case ["SGXT", "U32"], [one, (bits, 0)]:
            value = _masked(one, ((1 << bits) - 1, 0))
        case ["LOP3", "LUT"], [one, other, (0, 0), (0xC0, 0)]:
            value = _masked(one, other)
        case ["LOP3", "LUT"], [one, other, (0, 0), (0xFC, 0)]:
            value = _joined(one, other)
        case ["SEL"], [one, other]:
            value = _either(one, other)
        case _:
            value = _UNKNOWN
    return [value] * len(step.writes)


def _halves(given: list[tuple[Number, Number]]) -> list[Number]:
    """The low and high registers of a sum of pairs."""
    whole, steps = 0, 0
    for (low, every), (high, unknown) in given:
        whole, steps = whole + low + (high << 32), gcd(steps, every, unknown)
    return [(whole & 0xFFFFFFFF, steps), (whole >> 32, 0 if steps != 1 else 1)]


def _whole(operand: str, state: dict[str, Number]) -> tuple[Number, Number]:
    """What a pair of registers holds, low and high, the sign of both taken into it; a number fills one."""
    found = _OPERAND.fullmatch(operand)
    low = _held(operand, state)
    if found is None or found[3] == "Z":
        return low, (0, 0)
    high = _held(f"{found[1]}{found[2]}{int(found[3]) + 1}", state)
    return low, high


def _held(operand: str, state: dict[str, Number]) -> Number:
    found = _OPERAND.fullmatch(operand)
    if found is None:
        return _number(operand, 32)
    value = (0, 0) if found[3] == "Z" else state.get(found[2] + found[3], _UNKNOWN)
    return _times(value, (-1, 0)) if found[1] else value


def _number(text: str, bits: int) -> Number:
    try:
        return _cut((int(text, 0), 0), bits)
    except ValueError:
        return _UNKNOWN


def _cut(value: Number, bits: int) -> Number:
    return (value[0] & ((1 << bits) - 1), value[1]) if value[1] != 1 else _UNKNOWN


def _sum(one: Number, other: Number) -> Number:
    return one[0] + other[0], gcd(one[1], other[1])


def _times(one: Number, other: Number) -> Number:
    if one[1] and other[1]:
        return _UNKNOWN
    return one[0] * other[0], abs(one[1] * other[0] + one[0] * other[1])


def _shifted(one: Number, bits: int) -> Number:
    if one[1] and gcd(one[0], one[1], 1 << bits) != 1 << bits:
        return _UNKNOWN
    return one[0] >> bits, one[1] >> bits


def _masked(one: Number, other: Number) -> Number:
    """A mask leaves what it does not cut of a number; what one in the middle leaves of an unknown number is known."""
    if one[1] and other[1]:
        return _UNKNOWN
    value, mask = (one, other[0]) if one[1] else (other, one[0])
    if value[1] and mask & (mask + 1):
        return 0, mask & -mask
    return value[0] & mask, value[1]


def _joined(one: Number, other: Number) -> Number:
    """The bits of both, which are a sum where no bit is in both."""
    return _sum(one, other) if one[0] & other[0] == 0 else _UNKNOWN


def _among(value: Number, first: int, steps: int) -> bool:
    return steps not in (0, value[1]) and gcd(value[0] - first, value[1], steps) == steps


def _either(one: Number, other: Number) -> Number:
    """What is one number or the other: that of both which the other is one of, if it is."""
    for value, (first, steps) in ((one, other), (other, one)):
        if value == (first, steps) or _among(value, first, steps):
            return first, steps
    return _UNKNOWN
