"""What Triton makes of the kernels for an H100 or H200, seen without one.

ARCHSEARCH_TRITON names a directory with another Triton to see it with, made by
`pip install --target DIRECTORY --no-deps triton==3.6.0`; `make hopper` does both.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ASIDE = [os.environ["ARCHSEARCH_TRITON"]] if "ARCHSEARCH_TRITON" in os.environ else []
SHARED_MEMORY = 232448
"""Bytes of shared memory that a block may have on sm_90."""


SPILLED = {"gated_delta_net": 16, "q_delta": 48, "eda_scalar": 16, "gla": 8, "kda": 168, "eda": 16}
"""Bytes a thread that kernels of a rule which are not serial may keep outside their registers at K = V = 128."""
SPILLED_WHERE_STRONG = {"gla": 128, "kda": 600, "eda": 648}
"""The same of kernels for chunks that decay strongly, of which there are few if any."""
SERIAL = ("scan", "scan SAVE", "reverse")


def compiled(
    rule: str,
    batch: int,
    tokens: int,
    *,
    widths: tuple[int, int] = (128, 128),
    dtype: str = "bf16",
    chunk: int = 0,
    forced: str = "",
) -> dict[str, dict[str, int]]:
    """What a rule's kernels for [batch, tokens] of 16 heads came to, by their names; `forced`: an argument's value."""
    script = Path(__file__).with_name("compiled_for_hopper.py")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join((*ASIDE, root))}
    sizes = [str(size) for size in (batch, tokens, 16, *widths)]
    command = [sys.executable, str(script), rule, *sizes, dtype, str(chunk), *forced.split()]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout)


@pytest.mark.parametrize("rule", SPILLED)
def test_no_product_is_left_in_flight_and_shared_memory_suffices(rule: str) -> None:
    """A product still in flight at the end of a loop's body races with the next loads, and only its bits tell."""
    found = compiled(rule, 8, 4096)
    assert {"solve", "scan", "scan SAVE", "reverse", "gradients"} <= set(found)
    assert all(kernel["in flight"] == 0 for kernel in found.values()), found
    assert all(kernel["unwritten"] == kernel["lost"] == 0 for kernel in found.values()), found
    assert all(kernel["shared memory"] <= SHARED_MEMORY for kernel in found.values()), found
    assert all(found[name]["products"] > 0 for name in ("solve", "scan", "reverse", "gradients")), found
    strong = {name: kernel for name, kernel in found.items() if name.endswith("_strong")}
    assert all(kernel["stack"] <= SPILLED_WHERE_STRONG[rule] for kernel in strong.values()), found
    assert all(found[name]["stack"] <= SPILLED[rule] for name in found.keys() - strong), found
    assert all(found[name]["stack"] == 0 for name in SERIAL), found


@pytest.mark.parametrize("rule", ["simple_gla", "mamba2"])
def test_scans_that_make_their_own_pairs_have_registers_for_them(rule: str) -> None:
    found = compiled(rule, 8, 4096)
    assert found["solve"]["products"] == 0 and all(found[name]["products"] > 3 for name in SERIAL), found
    assert all(kernel["in flight"] == kernel["unwritten"] == kernel["lost"] == 0 for kernel in found.values()), found
    assert all(found[name]["stack"] == 0 for name in SERIAL), found
    assert all(kernel["shared memory"] <= SHARED_MEMORY for kernel in found.values()), found


@pytest.mark.parametrize("rule", SPILLED_WHERE_STRONG)
def test_gradients_of_strong_chunks_compile_as_soon_as_the_usual_ones(rule: str) -> None:
    """Triton looks for each load through all that every operation depends on or is used by: its time grows with the
    loads and the square of the operations. A first call waits for the kernel that takes longest.
    """
    found = compiled(rule, 8, 4096)
    assert found["gradients_strong"]["operations"] <= 1.1 * found["gradients"]["operations"], found
    assert found["gradients_strong"]["loads"] <= found["gradients"]["loads"], found


def test_a_rule_with_three_tiles_of_keys_a_token_fits_in_shared_memory() -> None:
    """Comba loads k, p and q: a stage less than rules that load two."""
    found = compiled("comba", 8, 4096)
    assert all(kernel["in flight"] == 0 for kernel in found.values()), found
    assert all(kernel["shared memory"] <= SHARED_MEMORY for kernel in found.values()), found


def test_a_rule_whose_outputs_are_divided_fits_in_shared_memory() -> None:
    """Outputs and their gradients are float32: tiles twice the size."""
    found = compiled("mlstm", 8, 4096)
    assert all(kernel["in flight"] == 0 for kernel in found.values()), found
    assert all(kernel["shared memory"] <= SHARED_MEMORY for kernel in found.values()), found
    assert all(found[name]["stack"] == 0 for name in SERIAL), found


def test_two_programs_that_find_what_a_piece_sends_on_fit_on_a_processor() -> None:
    found = compiled("gated_delta_net", 1, 32768)
    assert all(kernel["in flight"] == 0 for kernel in found.values()), found
    assert all(kernel["shared memory"] <= SHARED_MEMORY for kernel in found.values()), found
    assert found["scan PIECES"]["shared memory"] <= SHARED_MEMORY // 2 - 1024, found


def test_a_tile_that_the_assembler_loses_is_seen_and_moved() -> None:
    """ptxas 12.8 loses a tile's place in shared memory here; with half as many values a turn each launch is sound."""
    lost = compiled("eda_scalar", 64, 64, widths=(32, 64))
    moved = compiled("eda_scalar", 64, 64, widths=(32, 64), forced="gradients.BV=32")
    for seen in ("unwritten", "lost"):
        assert {name for name, kernel in lost.items() if kernel[seen]} == {"gradients"}
        assert [name for name, kernel in moved.items() if kernel[seen]] == []


@pytest.mark.parametrize("rule", ["joint_per_channel", "signed_between"])
def test_no_tile_is_lost_where_a_token_has_more_than_two_rows(rule: str) -> None:
    found = compiled(rule, 2, 64, widths=(60, 100))["gradients_strong"]
    assert found["products"] > 0
    assert found["unwritten"] == found["lost"] == 0, found


def test_no_place_of_a_product_of_three_tf32_is_taken_for_lost() -> None:
    """Its strides are summed from a pair of registers that one instruction clears."""
    found = compiled("delta_net", 2, 131, widths=(60, 100), dtype="fp32", chunk=64)
    assert {name for name, kernel in found.items() if kernel["products"]} >= {"solve", "gradients"}
    assert all(kernel["unwritten"] == kernel["lost"] == 0 for kernel in found.values()), found
