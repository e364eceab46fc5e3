"""Compiles a rule's kernels for sm_90 without a device and prints what each came to; test_triton_hopper runs it."""

import json
import re
import sys
from typing import Any, cast

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from archsearch.dsl import Kind
from archsearch.kernels.triton import launch
from archsearch.lowering import NormalForm, lower
from archsearch.mixers.zoo import rules

TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64"}
FOUND: dict[str, dict[str, int]] = {}


class Kernel:
    """A kernel that is compiled for the arguments of a launch instead of launched."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compiled

    def compiled(self, *tensors: Any, **named: Any) -> None:
        """Note the largest number of products in flight inside a loop, and the shared memory."""
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        given = dict(zip(self.function.arg_names, tensors, strict=False)) | named
        types: dict[str, str] = {}
        constants: dict[tuple[int], Any] = {}
        attributes: dict[tuple[int], list[list[Any]]] = {}
        for place, parameter in enumerate(self.function.params):
            value = given[parameter.name]
            if parameter.is_constexpr or value is None:
                types[parameter.name], constants[place,] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                types[parameter.name], attributes[place,] = TYPES[value.dtype], [["tt.divisibility", 16]]
            else:
                types[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        source = ASTSource(self.function, types, constants, attributes)
        compiled = cast(Any, triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options))
        pending = [int(number) for number in re.findall(r"pendings = (\d+)", compiled.asm["ttgir"])]
        FOUND[self.function.__name__] = {
            "in flight": max(pending, default=0),
            "shared memory": compiled.metadata.shared,
            "products": len(re.findall(r"warp_group_dot ", compiled.asm["ttgir"])),
        }


class Module:
    """The generated module, its kernels replaced."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Kernel:
        return Kernel(getattr(self.module, name))


def main(name: str) -> None:
    """Both passes of a rule of the zoo at K = V = 128 in bfloat16."""
    form = lower(rules[name])
    load = launch.kernels_of

    def replaced(form: NormalForm) -> Any:
        return Module(load(form))

    launch.kernels_of = replaced
    sizes = {"B": 1, "T": 128, "H": 1, "HV": 1, "K": 128, "V": 128}
    tensors: list[torch.Tensor] = []
    for operand in form.operands:
        wide = operand.kind in (Kind.GATE, Kind.LOG_DECAY)
        shape = [sizes[dim] for dim in operand.shape.strip("[]").split(", ")]
        tensors.append(torch.zeros(shape, dtype=torch.float32 if wide else torch.bfloat16))
    output, state, saved = launch.forward(form, tensors, None, None, 1.0, None)
    launch.backward(form, tensors, None, None, saved, output, state, 1.0, None)
    sys.stdout.write(json.dumps(FOUND))


if __name__ == "__main__":
    main(sys.argv[1])
