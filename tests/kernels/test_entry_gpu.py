"""The entry's kernels at full size on a CUDA device: bits, errors in bfloat16, offsets beyond 2^31."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from archsearch.kernels.entering import entered
from archsearch.kernels.entry import Entry, Feature, Norm, VectorEntry
from archsearch.kernels.triton.entry import launch, operation, sections
from archsearch.lowering import lower
from archsearch.mixers.layer.entries import entry_of
from archsearch.mixers.layer.planning import layer_of, plan_layer
from archsearch.mixers.zoo import rules

pytestmark = pytest.mark.gpu
HALF = 2.0**-8
"""Half a unit in the last place of bfloat16, relative: what one rounding may do."""


def drawn(name: str, batch: int, tokens: int, heads: int, width: int) -> tuple[Entry, dict[str, Tensor]]:
    """A mixer's entry and its raw operands in bfloat16; vectors with tokens innermost, as a convolution leaves them."""
    rule = rules[name]
    sizes = {"B": batch, "T": tokens, "H": heads, "HV": heads, "K": width, "V": width}
    found: dict[str, Tensor] = {}
    for operand in lower(rule).operands:
        shape = [sizes[dim] for dim in operand.shape.strip("[]").split(", ")]
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        vector = operand.is_address or operand.kind.value == "value"
        found[operand.name] = x.movedim(1, -1).contiguous().movedim(-1, 1) if vector else x
    return entry_of(plan_layer(rule, 64, 2, layer_of(rule, None))), found


def constants(entry: Entry, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for gate in entry.gates:
        shape = given[gate.operand].shape[2:]
        found |= {} if gate.bias is None else {gate.bias: torch.randn(shape, device="cuda")}
        found |= {} if gate.rate is None else {gate.rate: torch.randn(shape[:1], device="cuda")}
    return found


@pytest.mark.parametrize("name", ["gated_delta_net", "kda"])
@torch.no_grad()
def test_ten_repeats_at_full_size_are_equal_bit_for_bit(name: str) -> None:
    entry, given = drawn(name, 8, 4096, 16, 128)
    numbers = constants(entry, given)
    raws = [given[operand] for operand in entry.operands]
    own = [numbers[constant] for gate in entry.gates for constant in gate.constants]
    setup = launch.setup_of(sections.key(entry, lower(rules[name])), raws)
    made = launch.enter(setup, raws, own)
    slopes = [torch.randn_like(x) for x in made]
    gradients, row = launch.leave(setup, raws, own, slopes)
    for _ in range(9):
        again, other = launch.leave(setup, raws, own, slopes)
        same = zip([*made, *gradients, row], [*launch.enter(setup, raws, own), *again, other], strict=True)
        assert all(torch.equal(a, b) for a, b in same)


@pytest.mark.parametrize("name", ["gated_delta_net", "kda", "eda", "mamba2"])
def test_bfloat16_is_rounded_once(name: str) -> None:
    """Errors of whole tensors against float64: operands and gradients of raw ones in bfloat16, the rest in float32."""
    entry, given = drawn(name, 2, 1500, 4, 100)
    numbers = constants(entry, given)
    key = sections.key(entry, lower(rules[name]))
    found: list[list[Tensor]] = []
    for dtype in (None, torch.float64):
        raw = {n: (x if dtype is None else x.to(dtype)).detach().requires_grad_() for n, x in given.items()}
        own = {n: (x if dtype is None else x.to(dtype)).detach().requires_grad_() for n, x in numbers.items()}
        made = operation.run(entry, key, raw, own) if dtype is None else entered(entry, raw, own)
        operands = [made[operand] for operand in entry.operands]
        generator = torch.Generator("cuda").manual_seed(1)
        slopes = [
            torch.randn(x.shape, device="cuda", generator=generator, dtype=torch.bfloat16).to(x.dtype) for x in operands
        ]
        leaves = [*(raw[operand] for operand in entry.operands), *own.values()]
        found.append([*operands, *torch.autograd.grad(operands, leaves, slopes)])
    for one, other in zip(*found, strict=True):
        bound = HALF if one.dtype == torch.bfloat16 else 1e-5
        assert float((one.detach().double() - other.detach()).norm() / other.detach().norm()) < bound


@torch.no_grad()
def test_more_than_2_to_the_31_numbers() -> None:
    entry = Entry((VectorEntry("q", Feature.SILU, Norm.L2),))
    tokens = 2**31 // (64 * 128) + 5
    raw = torch.zeros(1, tokens, 64, 128, device="cuda", dtype=torch.bfloat16)
    raw[:, -5:] = torch.randn(1, 5, 64, 128, device="cuda", dtype=torch.bfloat16)
    setup = launch.setup_of(sections.key(entry, lower(rules["linear"])), [raw])
    (made,) = launch.enter(setup, [raw], [])
    expected = entered(entry, {"q": raw[:, -5:].float()}, {})["q"]
    torch.testing.assert_close(made[:, -5:].float(), expected, rtol=2 * HALF, atol=1e-6)
    assert not made[:, :-5].any()
    (gradients,), _ = launch.leave(setup, [raw], [], [torch.ones_like(raw)])
    assert gradients[:, -5:].isfinite().all() and gradients[:, -5:].any()
