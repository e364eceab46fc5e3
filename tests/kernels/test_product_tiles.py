"""Products that take a tile from what is no place in shared memory are found, whatever left it there."""

import pytest

from archsearch.kernels.triton import machine_code, product_tiles

LISTING = """
        /*0000*/                   S2UR UR4, SR_CgaCtaId ;
        /*0010*/                   UMOV UR5, 0x400 ;
        /*0020*/                   ULDC.64 UR14, c[0x0][0x2a8] ;
        /*0030*/                   ULEA UR6, UR4, UR5, 0x18 ;
        /*0040*/                   UIADD3 UR7, UR6, 0x2000, URZ ;
        /*0050*/                   USHF.R.U32.HI UR7, URZ, 0x4, UR7 ;
        /*0060*/                   UMOV UR11, 0x80000020 ;
        /*0070*/                   USGXT.U32 UR10, UR7, 0xe ;
        /*0080*/                   MOV R4, UR10 ;
        /*0090*/                   STL [R1+0x10], R4 ;
.L_x_1:
        /*00a0*/                   WARPGROUP.ARRIVE ;
        /*00b0*/                   {product} ;
        /*00c0*/                   {behind} ;
        /*00d0*/               @P0 BRA `(.L_x_1) ;
        /*00e0*/                   EXIT ;
"""
PRODUCT = "HGMMA.64x32x16.F32.BF16 R24, R92, gdesc[UR8].tnspB, R24"
"""Takes its right tile from UR10 and UR11."""


def several(*instructions: str) -> str:
    """Instructions one after another."""
    return " ;\n        /*0099*/                   ".join(instructions)


SWAP = several(*(f"ULOP3.LUT {to}, UR10, UR11, URZ, 0x3c, !UPT" for to in ("UR10", "UR11", "UR10")))
"""UR10 and UR11 change places."""
BACK = several(*(f"ULOP3.LUT {to}, UR11, UR10, URZ, 0x3c, !UPT" for to in ("UR11", "UR10", "UR11")))
"""And again."""
STRIDES = several(
    "IMAD.WIDE.U32 R8, R2, R3, R6",
    "CS2R R8, SRZ",
    "IADD3 R6, P0, R4, 0x2, RZ",
    "IADD3.X R9, R9, 0x40000040, RZ, P0, !PT",
    "R2UR UR10, R6",
    "R2UR UR11, R9",
)
"""A place 32 bytes on: the carry is added to a zero that is half of a pair, where half of a pointer was."""


def listing(*, product: str = PRODUCT, behind: str = "NOP", before: str = "") -> str:
    """A loop over one product, other instructions in it or before it."""
    text = LISTING.replace("{product}", product).replace("{behind}", behind)
    return text.replace(".L_x_1:", f"        /*0098*/                   {before} ;\n.L_x_1:") if before else text


@pytest.mark.parametrize(
    "sound",
    [
        listing(),
        listing(before="UIADD3.64 UR10, UR10, 0x40, URZ"),
        listing(before="UIADD3 UR10, UP0, UR10, 0x40, URZ"),
        listing(before="UIADD3.X UR11, URZ, -0x7fffffe0, URZ, UP0, !UPT"),
        listing(before=several("LDL R5, [R1+0x10]", "R2UR UR10, R5")),
        listing(before=STRIDES),
        listing(behind="UMOV UR12, UR14"),
        listing(before=several(SWAP, BACK)),
    ],
)
def test_a_tile_whose_place_is_made_of_an_address_is_not_lost(sound: str) -> None:
    assert product_tiles.lost(sound) == []


@pytest.mark.parametrize(
    "faulty",
    [
        listing(before="UIADD3 UR10, UP0, UR14, 0x40, URZ"),
        listing(before="UIADD3.X UR11, UR15, -0x7fffffe0, URZ, UP0, !UPT"),
        listing(before="UMOV UR10, UR6"),
        listing(before="UIADD3 UR10, UP0, UR20, 0x40, URZ"),
        listing(before=several("LDL R5, [R1+0x14]", "R2UR UR10, R5")),
        listing(behind="UMOV UR10, UR14"),
        listing(before=SWAP),
        listing(before="UIADD3 UR10, UR6, 0xe, URZ"),
        listing(before=several("UMOV UR10, UR14", "@P0 USGXT.U32 UR10, UR7, 0xe")),
        listing(before=several("MOV R5, UR6", "LDS R5, [R5]", "SGXT.U32 R5, R5, 0xe", "R2UR UR10, R5")),
        listing(before=several("MOV R7, R4", "LDG.E.128 R4, desc[UR14][R2.64]", "R2UR UR10, R7")),
        listing(before=several("STL [R1+0x10], RZ", "LDL R5, [R1+0x10]", "R2UR UR10, R5")),
        listing(before=several("MOV R5, R4", "STL [R2], R5", "LDL R5, [R2]", "R2UR UR10, R5")),
        listing(before="MOV R39, R4", behind="R2UR UR10, R39"),
        listing(before=several("EXIT", "NOP")),
        listing(product="HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8].tnspB, R24"),
    ],
    ids=[
        "pointer",
        "strides",
        "address not cut",
        "unwritten",
        "other memory",
        "overwritten in the loop",
        "exchanged",
        "address added to",
        "cut on a condition",
        "loaded",
        "last of four loaded",
        "zero stored and loaded",
        "other memory at a register",
        "last of the sums",
        "no path",
        "left tile",
    ],
)
def test_a_tile_that_is_taken_from_anything_else_is_found(faulty: str) -> None:
    (found,) = product_tiles.lost(faulty)
    assert found.startswith("HGMMA")


def test_what_is_written_on_one_path_alone_is_found() -> None:
    """The place is written, but not where the branch is taken."""
    text = listing().replace("        /*0060*/", "        /*0058*/               @P1 BRA `(.L_x_1) ;\n        /*0060*/")
    assert machine_code.unwritten(text) == []
    assert product_tiles.lost(text) == [PRODUCT]


def test_a_pointer_in_place_of_a_tile_is_no_unwritten_register() -> None:
    text = listing(before="UIADD3 UR10, UP0, UR14, 0x40, URZ")
    assert machine_code.unwritten(text) == []
    assert product_tiles.lost(text) == [PRODUCT]
