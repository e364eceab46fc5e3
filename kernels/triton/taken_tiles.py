"""Whether the products of a kernel's machine code take the tiles that its PTX names, one after another.

A register may hold the place of a tile that is another's. Of a ring of tiles, another stage of the right ring is not
told from the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd

from archsearch.kernels.triton.named_tiles import named
from archsearch.kernels.triton.product_tiles import Block, Step, blocks, flow
from archsearch.kernels.triton.tile_numbers import (
    UNKNOWN,
    Number,
    Product,
    cut,
    either,
    joined,
    masked,
    number,
    plus,
    shifted,
    times,
)

_OPERAND = re.compile(r"(-?)(U?R)(\d+|Z)(?:\.reuse)?")
_PREDICATE = re.compile(r"!?U?P[\dT]")
_MOVES = ("exchange", "STL", "LDL")
_FOLLOWED = re.compile(r"exchange|STL|LDL|R2UR|S2U?R|CS2R|U?(?:MOV|IADD3|VIADD|IMAD|LEA|SHF|SGXT|LOP3|SEL)(?:\.|$)")
"""Instructions that make tiles' places; of what others write nothing is known."""
_EXTENTS = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)")


def misplaced(ptx: str, listing: str) -> list[str]:
    """The first product of a listing that takes other tiles than those that are next in PTX, if any does.

    Next is what follows in the text or, where a loop of PTX ends, its first product again: loops may be unrolled.
    """
    products, after = named(ptx)
    at = {-1}
    for text, product in _taken(blocks(listing)):
        at = {place for before in at for place in after[before] if products[place] == product}
        if not at:
            return [text]
    return [] if len(products) - 1 in at else ["the end"]


def _taken(given: dict[str, Block]) -> Iterator[tuple[str, Product]]:
    """The products of machine code in its order, each with its text."""
    kept = _kept(given)
    entries = flow(kept, _follow, _merged)
    for name, block in kept.items():
        state = dict(entries.get(name, {}))
        for step in block.steps:
            if extents := _EXTENTS.match(step.text):
                tiles = tuple((state.get(low, UNKNOWN), state.get(high, UNKNOWN)) for low, high in step.places)
                yield step.text, ("x".join(extents.groups()), tiles)
            _follow(step, state)


def _kept(given: dict[str, Block]) -> dict[str, Block]:
    """The blocks with no instructions but products and those that write what tiles' places are made from."""
    steps = [step for block in given.values() for step in block.steps]
    followed = [step for step in steps if _FOLLOWED.match(step.text)]
    needed = {register for step in steps for tile in step.places for register in tile}
    size = 0
    while size < len(needed):
        size = len(needed)
        for step in followed:
            for register, reads in zip(step.writes, step.reads, strict=True):
                if register in needed:
                    needed.update(reads)
    return {
        name: Block([step for step in block.steps if step.places or not needed.isdisjoint(step.writes)], block.next)
        for name, block in given.items()
    }


def _follow(step: Step, state: dict[str, Number]) -> None:
    if not _FOLLOWED.match(step.text):
        state.update(dict.fromkeys(step.writes, UNKNOWN))
        return
    for register, value in zip(step.writes, _written(step, state), strict=True):
        held = cut(value, 32)
        state[register] = held if step.always else either(held, state.get(register, UNKNOWN))


def _merged(entry: dict[str, Number], state: dict[str, Number]) -> bool:
    """Whether what comes by another path changes what a block begins with; changes it."""
    changed = False
    for register, old in entry.items():
        new = either(old, state.get(register, UNKNOWN))
        if new != old:
            entry[register] = new
            changed = True
    return changed


def _written(step: Step, state: dict[str, Number]) -> list[Number]:
    """What an instruction of machine code writes to each of its registers."""
    kind = step.text.removeprefix("U")
    if kind.startswith(_MOVES):
        nothing = (0, 0) if kind.startswith("STL") else UNKNOWN
        return [state.get(reads[0], UNKNOWN) if reads else nothing for reads in step.reads]
    operands = [operand for operand in step.operands if not _PREDICATE.fullmatch(operand)][1:]
    low = [_held(operand, state) for operand in operands]
    if kind == "IADD3.64":
        return _halves([_whole(operand, state) for operand in operands])
    match kind.split("."), low:
        case _ if len(step.writes) > 1:
            value = (0, 0) if operands == ["SRZ"] else UNKNOWN
        case ["MOV" | "R2UR", *_], [value, *_]:
            pass
        case ["S2R" | "S2UR", *_], _ if operands == ["SR_CgaCtaId"]:
            value = (0, 0)
        case ["IADD3" | "VIADD", *_], _:
            value = (0, 0)
            for each in low:
                value = plus(value, each)
        case ["IMAD", *modes], [one, other, third] if "HI" not in modes:
            value = plus(times(one, other), third)
        case ["LEA"], [one, other, (bits, 0)]:
            value = plus(times(one, (1 << bits, 0)), other)
        case ["LEA", "HI"], [one, other, (0, 0), (bits, 0)]:
            value = plus(shifted(one, 32 - bits), other)
        case ["SHF", "R", "U32", "HI"], [(0, 0), (bits, 0), one]:
            value = shifted(one, bits)
        case ["SHF", "L", "U32"], [one, (bits, 0), _]:
            value = times(one, (1 << bits, 0))
        case ["SGXT", "U32"], [one, (bits, 0)]:
            value = masked(one, ((1 << bits) - 1, 0))
        case ["LOP3", "LUT"], [one, other, (0, 0), (0xC0, 0)]:
            value = masked(one, other)
        case ["LOP3", "LUT"], [one, other, (0, 0), (0xFC, 0)]:
            value = joined(one, other)
        case ["SEL"], [one, other]:
            value = either(one, other)
        case _:
            value = UNKNOWN
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
        return number(operand, 32)
    value = (0, 0) if found[3] == "Z" else state.get(found[2] + found[3], UNKNOWN)
    return times(value, (-1, 0)) if found[1] else value
