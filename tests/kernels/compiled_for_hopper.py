"""Compiles a rule's kernels for sm_90 without a device and prints what each came to; test_triton_hopper runs it."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from archsearch.dsl import Kind
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.triton import forms, launch, machine_code, product_tiles, setup
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
}
FOUND: dict[str, dict[str, int]] = {}
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
PROCESSORS = 132
FORCED: dict[tuple[str, str], int] = {}
"""By kernel and name, arguments in place of those of the launches."""


class Kernel:
    """A kernel that is compiled for the arguments of a launch instead of launched."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compiled

    def compiled(self, *tensors: Any, **named: Any) -> None:
        """Note the largest number of products in flight inside a loop, the shared memory, what reads of uniform
        registers come before any write, and what products have lost a tile.
        """
        options = {name: named.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in named}
        given = dict(zip(self.function.arg_names, tensors, strict=False)) | named
        given |= {name: value for (kernel, name), value in FORCED.items() if kernel == self.function.__name__}
        types: dict[str, str] = {}
        constants: dict[tuple[int], Any] = {}
        attributes: dict[tuple[int], list[list[Any]]] = {}
        for place, parameter in enumerate(self.function.params):
            value = given[parameter.name]
            if parameter.is_constexpr or value is None:
                types[parameter.name], constants[place,] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                types[parameter.name], attributes[place,] = f"*{NAMES[value.dtype]}", [["tt.divisibility", 16]]
            elif isinstance(value, TensorDescriptor):
                shape = ", ".join(str(size) for size in value.block_shape)
                types[parameter.name] = f"tensordesc<{NAMES[value.base.dtype]}[{shape}]>"
            else:
                types[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        source = ASTSource(self.function, types, constants, attributes)
        compiled = cast(Any, triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options))
        pending = [int(number) for number in re.findall(r"pendings = (\d+)", compiled.asm["ttgir"])]
        listing = machine_code.listing(compiled.asm["cubin"])
        name = self.function.__name__ + "".join(f" {flag}" for flag in ("PIECES", "SAVE") if given.get(flag))
        FOUND[name] = {
            **resources(compiled.asm["cubin"]),
            "in flight": max(pending, default=0),
            "shared memory": compiled.metadata.shared,
            "unwritten": len(machine_code.unwritten(listing)),
            "lost": len(product_tiles.lost(listing)),
            "products": len(re.findall(r"warp_group_dot ", compiled.asm["ttgir"])),
            "operations": len(re.findall(r"^ +(?:%\S+ = |tt\.|scf\.)", compiled.asm["ttir"], re.MULTILINE)),
            "loads": len(re.findall(r" tt\.load ", compiled.asm["ttir"])),
        }


def resources(cubin: bytes) -> dict[str, int]:
    """Registers a thread and bytes of its stack, which is where registers are spilled to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: re.search(rf"{name}:(\d+)", text) for name in ("REG", "STACK")}
    return {"registers": int(found["REG"][1]), "stack": int(found["STACK"][1])}  # pyright: ignore[reportOptionalSubscript]


class Module:
    """The generated module, its kernels replaced."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Kernel:
        return Kernel(getattr(self.module, name))


def main(
    name: str,
    batch: int,
    tokens: int,
    heads: int,
    keys: int,
    values: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    chunk: int = 0,
) -> None:
    """Both passes of a rule of the zoo, or a made-up one, at K = `keys` and V = `values`; chunk 0: the plan's."""
    form = lower(next((rule for rule in RULES if rule.name == name), None) or rules[name])
    load = setup.modules.load

    def replaced(name: str, text: str) -> Any:
        return Module(load(name, text))

    def processors(device: torch.device) -> int:
        return PROCESSORS

    setup.modules.load = replaced
    setup.processors = processors
    extents = {"B": batch, "T": tokens, "H": heads, "HV": heads, "K": keys, "V": values}
    tensors: list[torch.Tensor] = []
    for operand in form.operands:
        wide = operand.kind in (Kind.GATE, Kind.LOG_DECAY)
        shape = [extents[dim] for dim in operand.shape.strip("[]").split(", ")]
        tensors.append(torch.empty(shape, dtype=torch.float32 if wide else dtype, device="meta"))
    made = setup.setup_of(forms.key(form), tensors, None, None, chunk)
    output, state, kept = launch.forward(made, tensors, None, None, 1.0, keep=True)
    launch.forward(made, tensors, None, None, 1.0, keep=False)
    launch.backward(made, tensors, None, None, kept, output, state, 1.0)
    sys.stdout.write(json.dumps(FOUND))


if __name__ == "__main__":
    for given in sys.argv[9:]:
        place, _, value = given.partition("=")
        kernel, _, name = place.partition(".")
        FORCED[kernel, name] = int(value)
    kind = next(kind for kind, name in NAMES.items() if name == sys.argv[7])
    main(sys.argv[1], *(int(number) for number in sys.argv[2:7]), dtype=kind, chunk=int(sys.argv[8]))
