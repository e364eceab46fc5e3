"""A product that takes another tile than PTX names is found, though what it takes is a tile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from archsearch.kernels.triton import product_tiles, taken_tiles

ASIDE = [os.environ["ARCHSEARCH_TRITON"]] if "ARCHSEARCH_TRITON" in os.environ else []

PTX = """
	mov.b32 	%r1, global_smem;
	add.s32 	%r2, %r1, 8192;
	bfe.u32 	%r3, %r2, 4, 14;
	cvt.u64.u32 	%rd1, %r3;
	or.b64 	%rd2, %rd1, 4611686293305294848;
	mov.b32 	%r9, 0;
$L__BB0_1:
	shl.b32 	%r4, %r9, 12;
	add.s32 	%r5, %r1, %r4;
	bfe.u32 	%r6, %r5, 4, 14;
	cvt.u64.u32 	%rd3, %r6;
	add.s64 	%rd4, %rd3, 4611686293305294850;
	add.s32 	%r9, %r9, 1;
	wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%r20,%r21}, {%r30,%r31,%r32,%r33}, %rd2, %p2, 1, 1, 1;
	wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%r20,%r21}, %rd2, %rd4, %p2, 1, 1, 0, 1;
	@%p1 bra 	$L__BB0_1;
"""
"""A tile 8192 bytes on, and in a loop both it and the second part of one of a ring of tiles of 4096 bytes each."""

HEAD = """
S2UR UR4, SR_CgaCtaId
UMOV UR5, 0x400
ULEA UR6, UR4, UR5, 0x18
UIADD3 UR7, UR6, 0x2000, URZ
USHF.R.U32.HI UR7, URZ, 0x4, UR7
USGXT.U32 UR10, UR7, 0xe
UMOV UR11, 0x40000040
UMOV UR13, 0x40000040
UMOV UR17, 0x40000040
UMOV UR30, URZ"""
STAGE = """
ULEA UR8, UR30, UR6, 0xc
ULEA.HI UR9, UR8, URZ, URZ, 0x1c
UIADD3 UR30, UR30, 0x1, URZ
ULOP3.LUT UR20, UR9, 0x3fff, URZ, 0xc0, !UPT
UIADD3 UR14, UP0, UR20, 0x2, URZ
UIADD3.X UR15, URZ, 0x40000040, URZ, UP0, !UPT
UMOV UR12, UR10"""
FIRST = """
HGMMA.64x32x16.F32.BF16 R24, R92, gdesc[UR8].tnspB, R24"""
SECOND = """
HGMMA.64x32x16.F32.BF16 R24, gdesc[UR12].tnspB, R24"""
TURN = STAGE + FIRST + SECOND


def listing(body: str, head: str = HEAD) -> str:
    """Instructions before a loop and in it, as the disassembler writes them."""
    given = [*head.strip().split("\n"), "label", *body.strip().split("\n"), "@P0 BRA `(.L_x_1)", "EXIT"]
    lines = [f"        /*{place:04x}*/                   {line} ;" for place, line in enumerate(given)]
    return "\n".join(".L_x_1:" if "label" in line else line for line in lines)


@pytest.mark.parametrize(
    "sound",
    [
        listing(TURN),
        listing(TURN + TURN),
        listing(TURN.replace("UMOV UR12, UR10", "MOV R4, UR10\nSTL [R1+0x10], R4\nLDL R5, [R1+0x10]\nR2UR UR12, R5")),
        listing(TURN.replace("UMOV UR12, UR10", "UMOV UR12, UR10\n@P1 UMOV UR12, UR10")),
        listing(
            TURN.replace("UIADD3 UR14, UP0, UR20, 0x2, URZ", "UMOV UR21, 0x40000040").replace(
                "UIADD3.X UR15, URZ, 0x40000040, URZ, UP0, !UPT",
                "UMOV UR18, 0xfffffffe\nUMOV UR19, 0xffffffff\nUIADD3.64 UR14, UR20, -UR18, URZ",
            )
        ),
    ],
    ids=["as named", "unrolled", "kept in memory", "moved twice", "pairs subtracted"],
)
def test_products_that_take_what_is_named_are_sound(sound: str) -> None:
    assert product_tiles.lost(sound) == []
    assert taken_tiles.misplaced(PTX, sound) == []


@pytest.mark.parametrize(
    ("faulty", "product"),
    [
        (TURN.replace("UMOV UR12, UR10", "UMOV UR12, UR14"), SECOND),
        (STAGE + FIRST + "\nUMOV UR14, UR10" + SECOND, SECOND),
        (TURN + "\nUMOV UR10, UR14", FIRST),
        (TURN.replace("UMOV UR12, UR10", "UMOV UR12, UR10\n@P1 UMOV UR12, UR14"), SECOND),
        (TURN.replace("UR20, 0x2, URZ", "UR20, 0x4, URZ"), SECOND),
        (TURN.replace("UR30, UR6, 0xc", "UR30, UR6, 0xd"), SECOND),
        (STAGE + SECOND + FIRST, SECOND),
        (STAGE + FIRST, "the end"),
        (TURN + STAGE + SECOND, SECOND),
        (TURN.replace("HGMMA.64x32x16.F32.BF16 R24, g", "HGMMA.64x64x16.F32.BF16 R24, g"), "HGMMA.64x64x16"),
        (TURN.replace("UIADD3.X UR15, URZ, 0x40000040", "UIADD3.X UR15, URZ, 0x40000020"), SECOND),
    ],
    ids=[
        "another tile",
        "another tile left behind",
        "another tile from the second turn on",
        "another tile on a condition",
        "another part",
        "another ring",
        "another order",
        "too few",
        "too many",
        "other extents",
        "other strides",
    ],
)
def test_a_product_that_takes_another_tile_is_found(faulty: str, product: str) -> None:
    """All are places of tiles: following places alone finds nothing."""
    text = listing(faulty)
    assert product_tiles.lost(text) == []
    (found,) = taken_tiles.misplaced(PTX, text)
    assert found.startswith(product.strip())


def test_a_place_that_is_made_of_nothing_known_is_found() -> None:
    text = listing(TURN, HEAD.replace("0x400\n", "0x800\n"))
    assert product_tiles.lost(text) == []
    assert taken_tiles.misplaced(PTX, text) == [FIRST.strip()]


def test_every_fault_planted_in_real_machine_code_is_seen() -> None:
    """Each makes a product take the tile of the product before it, which following places alone does not see."""
    script, root = Path(__file__).with_name("misplaced_for_hopper.py"), str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join((*ASIDE, root))}
    command = [sys.executable, str(script), "linear_attention", "64", "64"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    counts = json.loads(run.stdout)
    assert counts["sound"] == counts["kernels"] > 4
    assert counts["misplaced"] == counts["faults"] > 20
    assert counts["lost"] == 0
