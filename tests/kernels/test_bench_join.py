"""Runs become one table where their controls agree, and are refused where they do not."""

from typing import Any

import pytest

from archsearch.errors import ConfigError
from archsearch.kernels.bench.join import joined


def timing(part: str, seconds: float) -> dict[str, Any]:
    return {
        "part": part,
        "seconds": seconds,
        "graph_seconds": None,
        "floor_share": 0.5,
        "peak_bytes": 2**21,
        "launches": 3,
    }


def measured(rule: str, role: str, path: str, seconds: float) -> dict[str, Any]:
    case = {"batch": 8, "tokens": 4096, "heads": 16}
    return {"rule": rule, "role": role, "path": path, "case": case, "timings": [timing("forward", seconds)]}


def run(control: float, *others: dict[str, Any], triton: str = "3.6.0") -> dict[str, Any]:
    return {
        "date": "2026-11-30",
        "command": "archsearch bench",
        "machine": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": triton},
        "measured": [measured("gated_delta_net", "ours", "archsearch, triton", control), *others],
    }


def test_runs_whose_controls_agree_are_one_table() -> None:
    own = measured("kda", "ours", "archsearch, triton", 1e-3)
    peer = measured("kda", "peer", "fla-core 0.6.0, chunk_kda; kda.chunk_bwd -> tilelang", 2.5e-3)
    lines = joined({"one": run(1e-3), "two": run(1.02e-3, own, peer)}).splitlines()
    assert lines[0] == "NVIDIA H200; torch 2.11.0, triton 3.6.0"
    assert [line for line in lines if line.startswith("|")][2:] == [
        "| gated_delta_net | 8 x 4096, 16 | forward | ours | 1.000 | - |  | 50% | 2 | 3 |",
        "| kda | 8 x 4096, 16 | forward | ours | 1.000 | - |  | 50% | 2 | 3 |",
        "| kda | 8 x 4096, 16 | forward | peer fla-core 0.6.0 | 2.500 | - | 2.50 | 50% | 2 | 3 |",
    ]
    assert lines[-1] == "- kda, peer fla-core 0.6.0: fla-core 0.6.0, chunk_kda; kda.chunk_bwd -> tilelang"


def test_runs_whose_controls_differ_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        joined({"one": run(1e-3), "two": run(1.04e-3)})
    assert str(refused.value) == (
        "runs are joined where gated_delta_net took as long within 3%; forward at 8 x 4096, 16 took 1.000 ms in one "
        "and 1.040 ms in two. Run one of them again"
    )


def test_runs_of_other_versions_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        joined({"one": run(1e-3), "two": run(1e-3, triton="3.7.1")})
    assert str(refused.value) == (
        "runs are joined on one kind of machine and versions; one has triton 3.6.0, two has 3.7.1. "
        "Run one of them again"
    )
