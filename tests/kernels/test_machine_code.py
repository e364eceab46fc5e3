"""Machine code that reads what nothing wrote is not run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton

from archsearch.errors import BackendError
from archsearch.kernels.triton import ahead, machine_code
from archsearch.kernels.triton.program import Program
from archsearch.kernels.triton.steps import Step

LISTING = """
        /*0000*/                   S2UR UR4, SR_CgaCtaId ;
        /*0010*/                   UMOV UR5, 0x400 ;
        /*0020*/                   ULEA UR8, UR4, UR5, 0x18 ;
        /*0030*/                   ULDC.64 UR30, c[0x0][0x208] ;
        /*0040*/                   LDG.E.64 R6, desc[UR30][R6.64] ;
        /*0050*/                   USGXT.U32 UR10, UR8, 0xe ;
        /*0060*/                   UMOV UR11, 0x80000020 ;
        /*0070*/                   HGMMA.64x32x16.F32.BF16 R24, R92, gdesc[UR8].tnspB, R24 ;
        /*0080*/              @!P1 UIADD3.64 UR12, UR10, 0x40, URZ ;
        /*0090*/                   LDS.64 R92, [R9+UR8+0x128e0] ;
        /*00a0*/                   UIMAD.WIDE.U32 UR20, UR5, UR10, URZ ;
"""


@pytest.mark.parametrize(
    "line",
    [
        "UIADD3 UR16, UP0, UR7, 0x40, URZ",
        "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8].tnspB, RZ, !UPT",
        "HGMMA.64x32x16.F32.BF16 R24, R92, gdesc[UR12].tnspB, R24",
        "UIADD3.64 UR16, UR15, 0x40, URZ",
        "UISETP.NE.AND UP0, UPT, UR6, URZ, UPT",
        "LDG.E R6, desc[UR40][R6.64]",
        "FMUL R4, R143, UR16",
    ],
)
def test_a_read_before_any_write_is_found(line: str) -> None:
    assert machine_code.unwritten(LISTING) == []
    assert machine_code.unwritten(f"{LISTING}        /*00b0*/                   {line} ;\n") == [line]


@pytest.mark.parametrize("bad", [False, True])
def test_a_kernel_is_looked_through_once(bad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cast(Any, triton).knobs.cache, "dir", str(tmp_path))
    looked: list[bytes] = []

    def listing(code: bytes) -> str:
        looked.append(code)
        return LISTING + ("        /*00b0*/                   FMUL R4, R143, UR16 ;\n" if bad else "")

    monkeypatch.setattr(machine_code, "listing", listing)
    kernel = SimpleNamespace(asm={"cubin": b"code", "ptx": "wgmma.mma_async"})
    assert [machine_code.sound(kernel) for _ in range(3)] == [not bad] * 3
    assert looked == [b"code"]


class Compiled:
    """A kernel that loads; `bad` where its machine code is not sound."""

    def __init__(self, *, bad: bool) -> None:
        self.bad, self.loaded = bad, False

    @property
    def run(self) -> None:
        self.loaded = True


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    """Of two launches, the second of which can have smaller tiles."""
    steps = (Step("solve", (1, 1, 1), {"K": 32}), Step("gradients", (1, 1, 1), {"K": 32, "V": 64, "BV": 64}))

    def launches(program: Program) -> list[ahead.Launch]:
        return [ahead.Launch(program, place) for place in range(len(program.steps))]

    monkeypatch.setattr(ahead, "_launches", launches)
    monkeypatch.setattr(machine_code, "sound", lambda kernel: not kernel.bad)
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    return Program({}, steps, (), ())


def compiling(monkeypatch: pytest.MonkeyPatch, bad: Any) -> list[Compiled]:
    """Notes what is compiled; `bad` of the arguments says what comes of them."""
    made: list[Compiled] = []

    def compile(launch: ahead.Launch) -> Compiled:
        made.append(Compiled(bad=bad(launch.step)))
        return made[-1]

    monkeypatch.setattr(ahead, "_compile", compile)
    return made


def test_an_unsound_kernel_is_compiled_with_smaller_tiles(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiling(monkeypatch, lambda step: step.arguments.get("BV", 0) > 16)
    ahead.prepare([program], torch.device("cpu"))
    assert [step.arguments.get("BV") for step in program.steps] == [None, 16]
    assert [(kernel.bad, kernel.loaded) for kernel in made] == [
        (True, False),
        (False, True),
        (True, False),
        (False, True),
    ]
    assert program.prepared


@pytest.mark.parametrize("kernel", ["solve", "gradients"])
def test_a_kernel_that_stays_unsound_is_refused_every_time(
    kernel: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling(monkeypatch, lambda step: step.kernel == kernel)
    for _ in range(2):
        with pytest.raises(BackendError, match=f"machine code of kernel {kernel} at K = 32.*would give wrong numbers"):
            ahead.prepare([program], torch.device("cpu"))
        assert not program.prepared
