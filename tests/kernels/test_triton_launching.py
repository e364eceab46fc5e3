"""What is bound launches what Triton would have launched, by ways of Triton's that both of its versions have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import triton
from torch import Tensor
from triton.backends.nvidia import driver as nvidia

from archsearch.kernels.triton import ahead, launcher
from archsearch.kernels.triton.launcher import Launcher
from archsearch.kernels.triton.program import Program
from archsearch.kernels.triton.steps import LINE, Buffer, Memory, Of, Step, Tile

NVIDIA = cast(Any, nvidia)
FORM = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [1, 16, 1, 16], "fp4_padded": False}
SIGNATURE = {"x": "*fp32", "tile": "tensordesc<bf16[1, 16, 1, 16]>", "room": "*fp32", "scale": "fp32", "N": "constexpr"}
SHAPE = (2, 32, 4, 16)


class Kernel:
    """A compiled kernel as Triton makes it, above a launcher that notes what reaches it."""

    def __init__(self, noted: list[tuple[Any, ...]]) -> None:
        def launch(*arguments: Any) -> None:
            noted.append(tuple(_flat(arguments)))

        run = object.__new__(NVIDIA.CudaLauncher)
        run.num_ctas, run.launch_cooperative_grid, run.launch_pdl = 1, False, False
        run.global_scratch_size, run.global_scratch_align = 0, 1
        run.profile_scratch_size, run.profile_scratch_align = 0, 1
        run.arg_annotations, run.kernel_signature = [], b""
        run.launch = NVIDIA.wrap_handle_tensordesc(launch, SIGNATURE, [FORM])
        self.run, self.function, self.packed_metadata = run, 17, (4, 1, 0)
        self.metadata, self.asm = SimpleNamespace(tensordesc_meta=[FORM]), dict[str, Any]()

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def launched(*arguments: Any) -> None:
            given = map(_address, arguments)
            self.run(*grid, 7, self.function, self.packed_metadata, None, None, None, *given)

        return launched

    def launch_metadata(self, grid: tuple[int, ...], stream: int, *arguments: Any) -> str:
        return f"metadata at {stream}"


class Function:
    """A jitted function: it launches as Triton does, and returns what it compiled."""

    def __init__(self) -> None:
        self.arg_names = list(SIGNATURE)
        self.noted: list[tuple[Any, ...]] = []
        self.named: list[dict[str, Any]] = []
        self.warmed: list[dict[str, Any]] = []
        self.kernel = Kernel(self.noted)

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., Kernel]:
        def launched(**arguments: Any) -> Kernel:
            self.named.append(arguments)
            self.kernel[grid](*(arguments[name] for name in self.arg_names))
            return self.kernel

        return launched

    def run(self, *, grid: tuple[int, int, int], warmup: bool, **arguments: Any) -> Kernel:
        assert warmup
        self.warmed.append(arguments)
        return self.kernel


def _flat(given: Sequence[Any]) -> Iterator[Any]:
    """Triton passes what is the kernel's own one by one, or as one list."""
    for each in given:
        if isinstance(each, list | tuple):
            yield from _flat(cast("Sequence[Any]", each))
        else:
            yield each


def _address(argument: object) -> object:
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Function:
    """A kernel on a device that encodes descriptors as the text of what it is given."""

    def encode(*given: Any) -> str:
        return repr(given)

    tools = SimpleNamespace(fill_tma_descriptor=encode, fill_tma_descriptor_tiled=encode)
    device = SimpleNamespace(utils=tools, get_current_stream=lambda index: 7)
    monkeypatch.setattr(cast(Any, triton).runtime, "driver", SimpleNamespace(active=device))
    return Function()


def program(function: Function) -> Program:
    """One launch of it."""
    memory = Memory.of((Buffer("first", (5,), torch.float32), Buffer("room", (8,), torch.float32)))
    arguments = {
        "scale": Of("scale"),
        "x": Of("x"),
        "tile": Tile("t", SHAPE, (1, 16, 1, 16)),
        "room": Of("room"),
        "N": 3,
    }
    given = (Buffer("x", (8,), torch.float32), Buffer("t", SHAPE, torch.bfloat16))
    module = SimpleNamespace(kernel=function)
    return Program({"kernel": Launcher(module)}, (Step("kernel", (2, 3, 1), arguments),), given, (memory,))


def tensors() -> tuple[list[Tensor | None], list[Tensor]]:
    return [torch.zeros(8), torch.zeros(SHAPE, dtype=torch.bfloat16)], [torch.zeros(LINE * 2, dtype=torch.uint8)]


def test_a_bound_launch_is_the_one_that_triton_makes(function: Function) -> None:
    run, (given, rooms) = program(function), tensors()
    run(0.5, given, rooms)
    run(0.5, given, rooms)
    assert len(function.named) == 1, "the second call was not bound"
    first, second = function.noted
    assert first == second and "[1, 16, 1, 16], [2, 32, 4, 16], [2048, 64, 16, 1]" in str(first)


def test_a_bound_launch_takes_the_addresses_of_its_own_call(function: Function) -> None:
    run = program(function)
    run(0.5, *tensors())
    given, rooms = tensors()
    run(0.25, given, rooms)
    run(0.25, given, rooms)
    text = str(function.noted[-1])
    for tensor in (*given, rooms[0][LINE:]):
        assert tensor is not None and str(tensor.data_ptr()) in text
    assert "0.25" in text and len(function.named) == 1
    expected = str(function.noted[0])
    run.bound.clear()
    run(0.25, given, rooms)
    assert str(function.noted[-1]) == text != expected


def test_an_odd_address_and_another_dtype_are_compiled_for_themselves(function: Function) -> None:
    run, (given, rooms) = program(function), tensors()
    run(0.5, given, rooms)
    run(0.5, [torch.zeros(9)[1:], given[1]], rooms)
    assert len(function.named) == 2 and len(run.bound) == 1
    run(0.5, [torch.zeros(8, dtype=torch.float64), given[1]], rooms)
    assert len(function.named) == 3 and len(run.bound) == 2
    run(0.5, given, rooms)
    assert len(function.named) == 3


def test_addresses_of_descriptors_are_forgotten_before_they_fill_the_memory(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "REMEMBERED", 2)
    run, (given, rooms) = program(function), tensors()
    tiles = [torch.zeros(SHAPE, dtype=torch.bfloat16) for _ in range(6)]
    for tile in (*tiles, *tiles):
        run(0.5, [given[0], tile], rooms)
        assert str(tile.data_ptr()) in str(function.noted[-1])
    frame, _ = next(iter(run.bound.values()))
    assert len(frame.tiles[0].known) <= 2


def test_hooks_around_a_launch_are_told(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (given, rooms) = program(function), tensors()
    run(0.5, given, rooms)
    run(0.5, given, rooms)
    assert "metadata" not in str(function.noted[-1])

    def listener(metadata: Any) -> None:
        raise AssertionError(metadata)

    knobs = cast(Any, triton).knobs
    chain = type(knobs.runtime.launch_enter_hook)()
    chain.add(listener)
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", chain)
    run(0.5, given, rooms)
    assert "metadata at 7" in function.noted[-1] and chain in function.noted[-1] and len(function.named) == 1


def test_a_launcher_wrapped_in_another_way_is_left_to_triton(function: Function) -> None:
    def wrapped(*arguments: Any) -> None:
        function.noted.append(arguments)

    function.kernel.run.launch = wrapped
    run, (given, rooms) = program(function), tensors()
    run(0.5, given, rooms)
    run(0.5, given, rooms)
    assert len(function.noted) == 2 and not run.bound


def test_triton_has_what_launching_stands_on() -> None:
    assert list(inspect.signature(NVIDIA.make_tensordesc_arg).parameters) == ["arg", "metadata"]
    wrapper = NVIDIA.wrap_handle_tensordesc(print, SIGNATURE, [FORM])
    assert "launcher" in wrapper.__code__.co_freevars
    order = list(inspect.signature(NVIDIA.CudaLauncher.__call__).parameters)
    assert order[:6] == ["self", "gridX", "gridY", "gridZ", "stream", "function"] and order[-1] == "args"
    compiled = cast(Any, triton).compiler.CompiledKernel
    assert isinstance(compiled.run, property) and callable(compiled.launch_metadata)
    assert cast(Any, triton).runtime._async_compile.active_mode.get() is None
    assert callable(triton.AsyncCompileMode) and "warmup" in inspect.signature(triton.JITFunction.run).parameters


def test_everything_is_made_ready_once_before_the_first_launch(
    function: Function, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "JITFunction", Function)
    loaders: list[int] = []
    monkeypatch.setattr(ahead, "_load", lambda kernel, device: loaders.append(get_ident()))
    first, second = program(function), program(function)
    ahead.prepare([first, second], torch.device("cpu"))
    ahead.prepare([first, second], torch.device("cpu"))
    assert len(function.warmed) == 2 and not function.noted
    assert loaders == [get_ident()] * 2, "two loads at once may change places"
    stand_ins = function.warmed[0]
    assert stand_ins["x"].device.type == "meta" and stand_ins["room"].dtype == torch.float32
    assert stand_ins["tile"].block_shape == [1, 16, 1, 16] and stand_ins["N"] == 3


def test_buffers_of_a_memory_stand_apart_on_lines() -> None:
    buffers = tuple(Buffer(str(n), (n, 3), dtype) for n in range(1, 40) for dtype in (torch.float32, torch.bfloat16))
    memory = Memory.of(tuple(buffer._replace(name=f"{i}") for i, buffer in enumerate(buffers)))
    views = memory.views(memory.new(torch.device("cpu")))
    for value, view in enumerate(views.values()):
        view.fill_(value)
    assert all(view.eq(value).all() for value, view in enumerate(views.values()))
    assert all(offset % LINE == 0 for offset in memory.offsets) and memory.size < sum(b.size + LINE for b in buffers)
