"""The tiles that PTX names for the products of warp groups, and the order of these.

The name of a tile is a number made from the address of shared memory; it is found with that address put in.
"""

from __future__ import annotations

import re

from archsearch.kernels.triton.tile_numbers import (
    SHARED,
    UNKNOWN,
    Number,
    Product,
    cut,
    joined,
    masked,
    number,
    plus,
    shifted,
    times,
)

_MADE = re.compile(r"^\s*(?:@!?%p\d+ )?([a-z]\w*(?:\.\w+)*)\s+(%\w+), (.*?);", re.MULTILINE)
_TURN = re.compile(
    r"wgmma\.mma_async\.\S*?\.m(?P<extents>\d+n\d+k\d+)\.\S+ \{[^}]*\}, (?:\{[^}]*\}, )?(?P<operands>.*?);"
    r"|^(?P<label>\$\w+):|bra(?:\.uni)?\s+(?P<target>\$\w+);",
    re.MULTILINE,
)


def named(ptx: str) -> tuple[list[Product], dict[int, set[int]]]:
    """The products of PTX in its order, and those that may come after each of them."""
    made: dict[str, list[tuple[str, list[str]]]] = {}
    for operation, register, rest in _MADE.findall(ptx):
        made.setdefault(register, []).append((operation, rest.split(", ")))
    values: dict[str, Number] = {"global_smem": SHARED}
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
        return number(operand, 64)
    if operand not in values:
        values[operand] = UNKNOWN
        if len(made.get(operand, ())) == 1:
            ((operation, operands),) = made[operand]
            given = [_made(each, made, values) for each in operands]
            values[operand] = cut(_computed(operation, given), 64 if operation.endswith("64") else 32)
    return values[operand]


def _computed(operation: str, given: list[Number]) -> Number:
    """What an instruction of PTX writes."""
    match operation.split("."), given:
        case ["mov" | "cvt", *_], [one]:
            return one
        case ["add", *_], [one, other]:
            return plus(one, other)
        case ["sub", *_], [one, other]:
            return plus(one, times(other, (-1, 0)))
        case ["or", *_], [one, other]:
            return joined(one, other)
        case ["and", *_], [one, other]:
            return masked(one, other)
        case ["shl", *_], [one, (bits, 0)]:
            return times(one, (1 << bits, 0))
        case ["shr", *_], [one, (bits, 0)]:
            return shifted(one, bits)
        case ["bfe", "u32"], [one, (bits, 0), (width, 0)]:
            return masked(shifted(one, bits), ((1 << width) - 1, 0))
        case ["mul", "lo", _], [one, other]:
            return times(one, other)
        case ["mad", "lo", _], [one, other, third]:
            return plus(times(one, other), third)
        case _:
            return UNKNOWN
