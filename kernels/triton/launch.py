"""The kernels of a rule run over buffers: forward, backward, one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archsearch.kernels.triton import ahead, gradient_launch, serial_launch
from archsearch.kernels.triton.launcher import ALIGNED
from archsearch.kernels.triton.plan import NARROWEST, WEAKEST, group_of, power
from archsearch.kernels.triton.program import Program
from archsearch.kernels.triton.setup import Saved, Setup, packed_chunks
from archsearch.kernels.triton.steps import Buffer, Memory, Of, Step


def forward(
    setup: Setup,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    *,
    keep: bool,
) -> tuple[Tensor, Tensor, Saved]:
    """Output [B, T, HV, V], final state [sequences, HV, K, V] float32, and what the backward needs.

    `keep`: with the state at every chunk's start, and D where it is no value as it is; the backward computes them again
    where they are missing.
    """
    program = forward_program(setup, keep=keep, initial=initial is not None)
    if not program.prepared:
        after = [_backward(setup, states=True, initial=initial is not None, final=False)] if keep else []
        ahead.prepare([program, *after], setup.device)
    tensors = [laid_out(tensor) for tensor in tensors]
    output, state = new_results(setup)
    rooms = [memory.new(setup.device) for memory in program.memories]
    start = None if initial is None else laid_out(initial)
    program(scale, (*tensors, *_packed(setup, cu_seqlens), start, output, state), rooms)
    return output, state, Saved(rooms[0], keep)


def new_results(setup: Setup) -> tuple[Tensor, Tensor]:
    """An empty output and final state."""
    return _empty(setup, setup.output), new_state(setup)


def new_state(setup: Setup) -> Tensor:
    """An empty state of every sequence."""
    return _empty(setup, setup.state)


class Gradients(NamedTuple):
    """Of every operand, in its dtype, None for values whose gradient is a part of `targets` [rows, B, T, HV, V]; of the
    initial state in float32, None where there was none.
    """

    operands: list[Tensor | None]
    initial: Tensor | None
    targets: Tensor


def backward(
    setup: Setup,
    tensors: Sequence[Tensor],
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    saved: Saved,
    d_output: Tensor,
    d_state: Tensor | None,
    scale: float,
) -> Gradients:
    """The gradients that reach operands and initial state from those of output and final state."""
    program = _backward(setup, states=saved.states, initial=initial is not None, final=d_state is not None)
    if not program.prepared:
        ahead.prepare([program], setup.device)
    tensors = [laid_out(tensor) for tensor in tensors]
    made = gradient_launch.new_gradients(setup, tensors)
    d_targets = _empty(setup, setup.targets)
    d_initial = None if initial is None else _empty(setup, setup.state)
    rooms = [saved.room, *[memory.new(setup.device) for memory in program.memories[1:]]]
    start = None if initial is None else laid_out(initial)
    end = None if d_state is None else laid_out(d_state)
    ends = (start, laid_out(d_output), end, d_targets)
    given = () if d_initial is None else (d_initial,)
    program(scale, (*tensors, *_packed(setup, cu_seqlens), *ends, *made.values(), *given), rooms)
    return Gradients(gradient_launch.gathered(setup, tensors, made), d_initial, d_targets)


def whole(setup: Setup, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None], targets: Tensor) -> list[Tensor]:
    """The gradient of every operand, those that are a part of `targets` taken from there."""
    found: list[Tensor] = []
    for i, gradient in enumerate(gradients):
        if gradient is None:
            gradient = targets[setup.plain[i]]
            gradient = gradient if gradient.dtype == tensors[i].dtype else gradient.to(tensors[i].dtype)
        found.append(gradient)
    return found


def all_gradients(setup: Setup, tensors: Sequence[Tensor], apart: Sequence[Tensor], targets: Tensor) -> list[Tensor]:
    """The same from the gradients that are no part of `targets` alone."""
    rest = iter(apart)
    return whole(setup, tensors, [None if i in setup.plain else next(rest) for i in range(len(tensors))], targets)


def fake_gradients(setup: Setup, tensors: Sequence[Tensor], initial: Tensor | None) -> list[Tensor]:
    """What an operation of the pass back returns, unwritten: gradients apart, that of the initial state, of targets."""
    state = new_state(setup)
    return [
        *(tensor.new_empty(tensor.shape) for i, tensor in enumerate(tensors) if i not in setup.plain),
        state if initial is None else state.to(initial.dtype),
        new_targets(setup),
    ]


def new_targets(setup: Setup) -> Tensor:
    """An empty gradient of the rows' targets."""
    return _empty(setup, setup.targets)


def _empty(setup: Setup, buffer: Buffer) -> Tensor:
    return torch.empty(buffer.shape, dtype=buffer.dtype, device=setup.device)


def one_token(setup: Setup, tensors: Sequence[Tensor], state: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One token: operands [B, 1, ...], state [B, HV, K, V] -> output [B, HV, V] and the state after it, float32."""
    output = torch.empty(_token_shape(setup), dtype=setup.output_dtype, device=setup.device)
    after = _empty(setup, setup.state)
    _step_program(setup)(scale, (*map(laid_out, tensors), laid_out(state), output, after), ())
    return output, after


def _token_shape(setup: Setup) -> tuple[int, int, int]:
    return setup.sizes.batch, setup.sizes.value_heads, setup.sizes.value_dim


def _step_program(setup: Setup) -> Program:
    """Worked out once."""
    if "step" not in setup.programs:
        sizes, values = setup.sizes, min(32, power(setup.sizes.value_dim))
        own = (setup.state._replace(name="state"), setup.output, setup.state._replace(name="after"))
        extents = {"H": sizes.heads, "HV": sizes.value_heads, "K": sizes.key_dim, "V": sizes.value_dim}
        step = Step(
            "step",
            (_blocks(sizes.value_dim, values) * setup.lanes, 1, 1),
            setup.pointers
            | {name: Of(name) for name in ("state", "output", "after", "scale")}
            | extents
            | {"KP": power(sizes.key_dim), "BV": values, "num_warps": 4},
        )
        setup.programs["step"] = setup.program([step] if setup.lanes else [], (*setup.operands, *own), ())
    return setup.programs["step"]


def laid_out(tensor: Tensor) -> Tensor:
    """The tensor as kernels and descriptors take it: contiguous, no negative view, from an aligned address on."""
    tensor = tensor.contiguous().resolve_neg()
    return tensor.clone() if tensor.data_ptr() % ALIGNED else tensor


def _packed(setup: Setup, cu_seqlens: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if cu_seqlens is None else packed_chunks(setup, cu_seqlens)


def forward_program(setup: Setup, *, keep: bool, initial: bool) -> Program:
    """Worked out once: what a call without gradients, or with them, launches."""
    key = ("forward", keep, initial)
    if key not in setup.programs:
        steps = [*solving_steps(setup), *serial_launch.scan_forward(setup, initial=initial, results=True, keep=keep)]
        memories = [setup.whole if keep else setup.kept, *rooms_of(serial_launch.pieces_of(setup))]
        setup.programs[key] = setup.program(steps, (*brought(setup), setup.output, setup.state), memories)
    return setup.programs[key]


def _backward(setup: Setup, *, states: bool, initial: bool, final: bool) -> Program:
    """Worked out once. `states`: whether the forward has left the states and D; `final`: a gradient of the state."""
    key = ("backward", states, initial, final)
    if key not in setup.programs:
        again = [] if states else serial_launch.scan_forward(setup, initial=initial, results=False, keep=True)
        steps = [*again, *serial_launch.scan_back(setup, final=final), *gradient_launch.steps(setup)]
        ends = (setup.output._replace(name="d_output"), setup.state._replace(name="d_final"), setup.targets)
        d_initial = setup.state._replace(name="d_initial")
        given = (*brought(setup), *ends, *gradient_launch.gradient_buffers(setup).values())
        d_states = next(buffer for buffer in setup.buffers if buffer.name == "states")._replace(name="d_states")
        own = [d_states, *gradient_launch.scratch(setup), *serial_launch.pieces_of(setup)]
        own += [] if initial else [d_initial]
        own += [] if states else setup.again.buffers
        memories = [setup.whole if states else setup.kept, *rooms_of(tuple(own))]
        setup.programs[key] = setup.program(steps, (*given, d_initial) if initial else given, memories)
    return setup.programs[key]


def rooms_of(buffers: tuple[Buffer, ...]) -> tuple[Memory, ...]:
    """Room for a pass alone; none where it needs none."""
    return (Memory.of(buffers),) if buffers else ()


def brought(setup: Setup) -> tuple[Buffer, ...]:
    """What both passes are given first."""
    packed = (Buffer("table", (setup.count, 2), torch.int64), Buffer("offsets", (), torch.int64))
    return (*setup.operands, *packed, setup.state._replace(name="initial"))


def solving_steps(setup: Setup) -> list[Step]:
    """Of each chunk G, its sign, what decays leave of a state, factors, and what else the rule needs: T, P T, the
    bonus's weight, decayed rows.
    """
    if setup.empty:
        return []
    grid = (setup.count, setup.sizes.value_heads, 1)
    solved = setup.common | setup.pointers | {name: setup.of(name) for name in ("decay", "sign", "inverse", "reads")}
    solved |= {
        "table": setup.table,
        "scale": Of("scale"),
        "BK": setup.use.solve_keys,
        "SOLVE": setup.use.solve_dtype,
        "SOLVE_PRECISION": setup.use.solve,
        "num_warps": setup.use.warps if setup.facts.solves else 1,
        "num_stages": 2,
    }
    rest: dict[str, Any] = {name: setup.of(name) for name in ("carry", "factors", "bonus")} | {"zero": 0.0}
    rest |= {"maxnreg": setup.use.solve_registers}
    if not setup.facts.channel:
        return [Step("solve", grid, solved | rest)]
    rest |= {name: setup.of(name) for name in ("strong", "kept_residual", "kept_write", "kept_read")}
    rest |= {"LIMIT": WEAKEST}
    levels = {"strong": setup.of("strong"), "BK": NARROWEST, "LEVELS": setup.use.chunk.bit_length() - 1}
    group = group_of(setup.count * setup.sizes.value_heads, setup.problem.processors)
    levels |= {"count": setup.count, "group": group}
    grouped = (_blocks(setup.count, group), setup.sizes.value_heads, 1)
    return [Step("solve", grid, solved | rest), Step("solve_strong", grouped, solved | levels)]


def _blocks(size: int, block: int) -> int:
    return (size + block - 1) // block
