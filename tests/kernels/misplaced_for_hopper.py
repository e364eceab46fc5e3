"""Plants faults in machine code of a rule's kernels for sm_90, prints how many are seen; test_taken_tiles runs it."""

import contextlib
import io
import json
import re
import sys

import compiled_for_hopper as hopper

from archsearch.kernels.triton import named_tiles, product_tiles, taken_tiles

PRODUCT = re.compile(r"^.*?HGMMA\.\S+ (.*?);.*$", re.MULTILINE)
CALLS: list[tuple[str, str]] = []


def faulty(ptx: str, listing: str) -> list[str]:
    """Listings in each of which one product takes the right tile of the product before it, where that is another and
    its register was not written since.
    """
    named, _ = named_tiles.named(ptx)
    found = list(PRODUCT.finditer(listing))
    assert len(found) == len(named)
    registers = [product_tiles.tiles(product[1].split(", "))[-1] for product in found]
    made: list[str] = []
    for place in range(1, len(found)):
        taken, right = registers[place - 1], registers[place]
        at = found[place].start()
        written = re.search(rf"[A-Z]\S* UR{taken},", listing[found[place - 1].start() : at])
        if taken != right and not written and named[place - 1][1][-1] != named[place][1][-1]:
            move = f"        /*0000*/                   UMOV UR{right}, UR{taken} ;\n"
            made.append(listing[:at] + move + listing[at:])
    return made


def noted(ptx: str, listing: str) -> list[str]:
    """What a kernel was compiled to."""
    CALLS.append((ptx, listing))
    return []


def main(rule: str, keys: int, values: int) -> None:
    """Of all kernels of a rule: how many faults, and how many are seen by the order of tiles and by places alone."""
    misplaced, taken_tiles.misplaced = taken_tiles.misplaced, noted
    with contextlib.redirect_stdout(io.StringIO()):
        hopper.main(rule, 2, 64, 16, keys, values)
    counts = {"faults": 0, "misplaced": 0, "lost": 0, "sound": 0}
    for ptx, listing in CALLS:
        counts["sound"] += misplaced(ptx, listing) == []
        for fault in faulty(ptx, listing):
            counts["faults"] += 1
            counts["misplaced"] += misplaced(ptx, fault) != []
            counts["lost"] += product_tiles.lost(fault) != []
    sys.stdout.write(json.dumps({"kernels": len(CALLS), **counts}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
