"""Launches of kernels. What the first launch compiled is run again as it is, without Triton's own lookup, which takes
longer than many a kernel; where a whole pass is known, with nothing prepared anew but addresses.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from archsearch.kernels.triton.steps import Of, Step, Tile

ALIGNED = 16
"""Bytes on which Triton takes an address to be aligned, and makes other code where one is not."""
REMEMBERED = 256
"""Addresses whose tensor descriptors are kept, a tile of a setup."""


class Launcher:
    """Calls kernels of a generated module on one device."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.compiled: dict[tuple[object, ...], tuple[Any, tuple[str, ...]]] = {}

    def __call__(self, name: str, grid: tuple[int, int, int], arguments: Mapping[str, Any]) -> Any:
        """Run kernel `name`; `arguments` by name, with num_warps, num_stages and maxnreg among them.

        Returns what was compiled; None under the interpreter, where nothing is.
        """
        key = (name, *(_kind(argument) for argument in arguments.values()))
        known = self.compiled.get(key)
        if known is not None:
            kernel, parameters = known
            kernel[grid](*(arguments[parameter] for parameter in parameters))
            return kernel
        function = getattr(self.module, name)
        kernel = function[grid](**arguments)
        if kernel is not None:
            self.compiled[key] = kernel, tuple(function.arg_names)
        return kernel


def _kind(argument: object) -> object:
    """What of an argument decides which code runs."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % ALIGNED == 0
    if isinstance(argument, TensorDescriptor):
        return argument.base.dtype
    return argument


class Address:
    """Stands for a tensor where only its address and dtype are asked for."""

    __slots__ = ("dtype", "value")

    def __init__(self, value: int, dtype: torch.dtype) -> None:
        self.value = value
        self.dtype = dtype

    def data_ptr(self) -> int:
        """The address in bytes."""
        return self.value


class Encoded:
    """A tile's tensor descriptor as the device reads it, made once an address. `place` is that of the address."""

    def __init__(self, tile: Tile, place: int, dtype: torch.dtype, form: Any) -> None:
        self.tile, self.place, self.dtype, self.form = tile, place, dtype, form
        self.known: dict[int, object] = {}

    def at(self, address: int) -> object:
        """The first of the arguments that a descriptor is for a kernel; the others are the same at every address."""
        found = self.known.get(address)
        if found is None:
            if len(self.known) >= REMEMBERED:
                self.known.clear()
            found = self.known[address] = self.arguments(address)[0]
        return found

    def arguments(self, address: int) -> list[Any]:
        """All of them."""
        from triton.backends.nvidia.driver import make_tensordesc_arg  # pyright: ignore

        base = Address(address, self.dtype)
        descriptor = TensorDescriptor(base, list(self.tile.shape), self.tile.strides, list(self.tile.block))
        found = cast(Any, make_tensordesc_arg)(descriptor, self.form)
        return [address if found[0] is base else found[0], *found[1:]]


class Frame:
    """All that the launches of a pass take, by its place: what a call brings, then constants, then descriptors."""

    def __init__(self, names: Sequence[str], dtypes: Sequence[torch.dtype | None]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.dtypes = dict(zip(names, dtypes, strict=True))
        self.constants: list[Any] = []
        self.tiles: list[Encoded] = []
        self.found: dict[tuple[Any, ...], Encoded] = {}

    def constant(self, value: object) -> tuple[str, int]:
        """Where a value that never changes stands."""
        self.constants.append(value)
        return "constant", len(self.constants) - 1

    def descriptor(self, tile: Tile, form: Any) -> list[tuple[str, int]]:
        """Where the arguments stand that a descriptor is for a kernel."""
        key = (*tile, repr(form))
        if key not in self.found:
            dtype = self.dtypes[tile.name]
            assert dtype is not None
            self.found[key] = Encoded(tile, self.places[tile.name], dtype, form)
            self.tiles.append(self.found[key])
        encoded = self.found[key]
        others = encoded.arguments(0)[1:]
        return [("tile", self.tiles.index(encoded)), *map(self.constant, others)]

    def place(self, found: tuple[str, int]) -> int:
        """The place in a filled frame."""
        kind, index = found
        first = {"given": 0, "constant": len(self.places), "tile": len(self.places) + len(self.constants)}
        return first[kind] + index

    def fill(self, values: list[Any]) -> None:
        """Add constants and descriptors to what a call brings."""
        values += self.constants
        values += [tile.at(values[tile.place]) for tile in self.tiles]


class Bound:
    """A compiled kernel with everything about its launch settled but what the frame holds."""

    def __init__(self, kernel: Any, step: Step, parameters: Sequence[str], frame: Frame) -> None:
        self.kernel, self.grid = kernel, step.grid
        self.run, self.function, self.packed = direct(kernel.run), kernel.function, kernel.packed_metadata
        forms = iter(getattr(kernel.metadata, "tensordesc_meta", None) or ())
        self.wanted: list[tuple[str, int]] = []
        for parameter in parameters:
            argument = step.arguments[parameter]
            if isinstance(argument, Of):
                self.wanted.append(("given", frame.places[argument.name]))
            elif isinstance(argument, Tile):
                self.wanted += frame.descriptor(argument, next(forms, None))
            else:
                self.wanted.append(frame.constant(argument))
        self.pick: Any = None
        self.rest, self.together = added(self.run, self.grid, self.function, self.packed) or (None, False)

    def settle(self, frame: Frame) -> None:
        """Once every launch of the pass has put its constants into the frame."""
        self.pick = itemgetter(*map(frame.place, self.wanted))

    def __call__(self, values: list[Any], stream: int, enter: Any, leave: Any) -> None:
        """Launch with what a filled frame holds; the hooks are Triton's, None where nobody listens."""
        arguments = self.pick(values)
        metadata = None
        if enter is not None or leave is not None:
            metadata = self.kernel.launch_metadata(self.grid, stream, *arguments)
        elif self.rest is not None:
            own = (arguments,) if self.together else arguments
            self.run.launch(*self.grid, stream, *self.rest, *own)
            return
        self.run(*self.grid, stream, self.function, self.packed, metadata, enter, leave, *arguments)


def hooks() -> tuple[Any, Any]:
    """Triton's hooks around a launch, which profilers set; None for one that would call nobody."""
    set_now = cast(Any, triton).knobs.runtime
    found: tuple[Any, Any] = (set_now.launch_enter_hook, set_now.launch_exit_hook)
    enter, leave = (hook if getattr(hook, "calls", hook) else None for hook in found)
    return enter, leave


def direct(run: Any) -> Any:
    """Triton's launcher of one kernel, without the wrapper that makes tensor descriptors at every launch.

    The wrapper, where there is one, is a closure over the launcher that it calls with the finished arguments. None
    where there is another wrapper: such a kernel can only be launched by Triton's own way.
    """
    closed = getattr(getattr(run, "launch", None), "__closure__", None)
    if closed is None:
        return run
    names = run.launch.__code__.co_freevars
    if "launcher" not in names:
        return None
    found = copy.copy(run)
    found.launch = closed[names.index("launcher")].cell_contents
    return found


def added(
    run: Any, grid: tuple[int, int, int], function: object, packed: object
) -> tuple[tuple[Any, ...], bool] | None:
    """What Triton puts between a launch's stream and the kernel's own arguments, and whether those come as one.

    It is the same at every launch without hooks, unless memory is allocated for each: then, None.
    """
    if getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1):
        return None
    noted: list[tuple[Any, ...]] = []

    def _note(*given: Any) -> None:
        noted.append(given)

    probe = copy.copy(run)
    probe.launch = _note
    stream, own = object(), object()
    probe(*grid, stream, function, packed, None, None, None, own)
    (given,) = noted
    return (given[4:-1], given[-1] is not own) if given[:4] == (*grid, stream) else None
