"""From what the memory recalled to the layer's output: skip, norm, gate, projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.kernels.entering import exact
from archsearch.mixers.layer.initialisation import Stream, gate_constant
from archsearch.mixers.layer.plan import LayerPlan
from archsearch.mixers.layer.shapes import as_channels, as_heads
from archsearch.mixers.layer.source import Lift

Finish = Callable[[Tensor, Tensor | None], Tensor]
"""What is read [B, T, HV, V] and the raw gate of its shape, if any, to both together."""


class Output(nn.Module):
    """W_o (norm(o + D v) * gate), the norm over a head's V channels; with `gate_first` norm((o + D v) * gate).

    finish: what takes the place of norm and gate, if anything does.
    """

    def __init__(self, plan: LayerPlan, stream: Stream) -> None:
        super().__init__()
        sizes, layer = plan.sizes, plan.layer
        self.heads, self.dim = sizes.value_heads, sizes.value
        self.gate, self.gate_first, self.eps = layer.output_gate, layer.gate_first, layer.norm_eps
        self.skipped = plan.skipped
        grouped = layer.output_norm == "group"
        self.norm = nn.Parameter(torch.ones(self.heads, self.dim) if grouped else torch.ones(self.dim))
        self.norm_bias = nn.Parameter(torch.zeros(self.heads, self.dim)) if grouped else None
        self.lift = None if plan.gate_map is None else Lift(plan.gate_map, self.heads, self.dim, stream / "gate")
        self.D = None if self.skipped is None else gate_constant(torch.ones(self.heads))
        self.projection = nn.Parameter((stream / "output").normal(sizes.width, plan.outputs))
        self.finish: Finish | None = None

    def forward(self, read: Tensor, gate_rows: Tensor, operands: Mapping[str, Tensor]) -> Tensor:
        """`read` [B, T, HV, V] and the gate's rows [B, T, gate_inputs] -> [B, T, width]; norm and gate in float32."""
        o = read
        if self.D is not None and self.skipped is not None:
            o = exact(read) + exact(self.D)[:, None] * exact(operands[self.skipped])
        gate = None if self.lift is None else as_heads(self.lift(gate_rows), self.dim)
        o = (self.finish or self.finished)(o, gate)
        return F.linear(as_channels(o).to(read.dtype), self.projection)

    def finished(self, o: Tensor, gate: Tensor | None) -> Tensor:
        """Norm and gate, in float32."""
        o = exact(o)
        if gate is None:
            return self._normalised(o)
        gate = exact(gate)
        gate = F.silu(gate) if self.gate == "swish" else torch.sigmoid(gate) if self.gate == "sigmoid" else gate
        return self._normalised(o * gate) if self.gate_first else self._normalised(o) * gate

    def _normalised(self, o: Tensor) -> Tensor:
        if self.norm_bias is not None:
            return F.layer_norm(o, (self.dim,), eps=self.eps) * exact(self.norm) + exact(self.norm_bias)
        return F.rms_norm(o, (self.dim,), exact(self.norm), self.eps)
