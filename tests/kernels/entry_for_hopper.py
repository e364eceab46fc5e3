"""Compiles a mixer's entry for sm_90 without a device and prints what it came to; test_triton_hopper_entry runs it."""

import json
import sys
from typing import Any

import torch
from compiled_for_hopper import FOUND, Module  # pyright: ignore

from archsearch.kernels.triton.entry import launch, sections
from archsearch.lowering import lower
from archsearch.mixers.layer.entries import entry_of
from archsearch.mixers.layer.planning import layer_of, plan_layer
from archsearch.mixers.zoo import rules


def main(name: str, batch: int, tokens: int, heads: int, width: int) -> None:
    """Both passes at K = V = `width`, the raw operands in bfloat16."""
    load = launch.modules.load

    def replaced(name: str, text: str) -> Any:
        return Module(load(name, text))

    launch.modules.load = replaced
    rule = rules[name]
    entry, form = entry_of(plan_layer(rule, 64, 2, layer_of(rule, None))), lower(rule)
    extents = {"B": batch, "T": tokens, "H": heads, "HV": heads, "K": width, "V": width}
    shapes = {
        operand.name: [extents[dim] for dim in operand.shape.strip("[]").split(", ")] for operand in form.operands
    }
    raws = [torch.empty(shapes[name], dtype=torch.bfloat16, device="meta") for name in entry.operands]
    setup = launch.setup_of(sections.key(entry, form), raws)
    bounds = [shapes[gate.operand][2:] for gate in entry.gates for _ in gate.constants]
    constants = [torch.empty(shape, device="meta") for shape in bounds]
    launch.leave(setup, raws, constants, launch.enter(setup, raws, constants))
    sys.stdout.write(json.dumps(FOUND))


if __name__ == "__main__":
    main(sys.argv[1], *(int(number) for number in sys.argv[2:]))
