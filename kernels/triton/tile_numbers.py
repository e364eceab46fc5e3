"""Numbers that name tiles in shared memory, as far as code that makes them tells; arithmetic on them.

A number that changes from turn to turn, such as a stage of a ring of tiles, is known up to a multiple of its steps.
"""

from __future__ import annotations

from math import gcd

Number = tuple[int, int]
"""A number, and the steps by an unknown multiple of which it may lie further; 0: none, 1: nothing is known."""
Product = tuple[str, tuple[tuple[Number, Number], ...]]
"""The extents of a product, and low and high halves of what names each of its tiles."""

UNKNOWN: Number = (0, 1)
SHARED: Number = (0x400, 0)
"""Where shared memory begins for a program that is alone in its cluster."""


def number(text: str, bits: int) -> Number:
    """What a number in a listing stands for, in a register of so many bits; nothing is known of other text."""
    try:
        return cut((int(text, 0), 0), bits)
    except ValueError:
        return UNKNOWN


def cut(value: Number, bits: int) -> Number:
    """What a register of so many bits keeps."""
    return (value[0] & ((1 << bits) - 1), value[1]) if value[1] != 1 else UNKNOWN


def plus(one: Number, other: Number) -> Number:
    """Their sum."""
    return one[0] + other[0], gcd(one[1], other[1])


def times(one: Number, other: Number) -> Number:
    """Their product, known where one is."""
    if one[1] and other[1]:
        return UNKNOWN
    return one[0] * other[0], abs(one[1] * other[0] + one[0] * other[1])


def shifted(one: Number, bits: int) -> Number:
    """A number without its last bits, known where its steps have none there."""
    if one[1] and gcd(one[0], one[1], 1 << bits) != 1 << bits:
        return UNKNOWN
    return one[0] >> bits, one[1] >> bits


def masked(one: Number, other: Number) -> Number:
    """A mask leaves what it does not cut of a number; what one in the middle leaves of an unknown number is known."""
    if one[1] and other[1]:
        return UNKNOWN
    value, mask = (one, other[0]) if one[1] else (other, one[0])
    if value[1] and mask & (mask + 1):
        return 0, mask & -mask
    return value[0] & mask, value[1]


def joined(one: Number, other: Number) -> Number:
    """The bits of both, which are a sum where no bit is in both."""
    return plus(one, other) if one[0] & other[0] == 0 else UNKNOWN


def _among(value: Number, first: int, steps: int) -> bool:
    return steps not in (0, value[1]) and gcd(value[0] - first, value[1], steps) == steps


def either(one: Number, other: Number) -> Number:
    """What is one number or the other: that of both which the other is one of, if it is."""
    for value, (first, steps) in ((one, other), (other, one)):
        if value == (first, steps) or _among(value, first, steps):
            return first, steps
    return UNKNOWN
