"""One trial on several processes that share its parameters, gradients and moments too, not its batches alone (FSDP2):
for models whose training does not fit on one device.

A block is whole on a process only while it is used, forwards and backwards. What a run gives away is whole: a
checkpoint is that of one process, and goes on in any number of them.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from archsearch.mixers.models.blocks import Block
from archsearch.studies.tasks.task import Part
from archsearch.studies.training.parallel import Ranks, SharedRun
from archsearch.studies.training.run import Run

SMALL = 1e-6
"""Added to a norm before it divides, as torch does."""


class ShardedRun(SharedRun):
    """A run of which this process makes its share of every batch, and keeps its share of every parameter.

    Parameters are gathered in float32, so that products are rounded as in one process. Every process evaluates: none
    has the whole model.
    """

    def __init__(self, ranks: Ranks, *given: Any, graphs: bool) -> None:
        """given: as of `Run`. ConfigError for graphs, and for batches of fewer sequences than processes."""
        super().__init__(ranks, *given, graphs=graphs)

    def evaluate(self, part: Part = Part.VALIDATION) -> dict[str, float]:
        """The task's values, from every process."""
        return Run.evaluate(self, part)

    def tensors(self) -> dict[str, Tensor]:
        """As `Run.tensors`, whole, from the first process; nothing from the others, who give their shares."""
        cast(FSDPModule, self.model).reshard()  # after an evaluation what is outside the blocks still is whole
        kept: dict[str, Tensor] = {}
        for name, tensor in self._named().items():
            whole = gathered(tensor) if isinstance(tensor, DTensor) else tensor
            if self._ranks.is_first:
                kept[name] = whole.detach().cpu().clone().contiguous()
        return kept

    def _placed(self, model: nn.Module) -> nn.Module:
        return sharded(model, self.device)

    def _clipped(self) -> Tensor:
        shares = [cast(DTensor, each.grad).to_local() for each in self.model.parameters() if each.grad is not None]
        norm = self._ranks.summed(nn.utils.get_total_norm(shares).square()).sqrt()
        if self.training.clip:
            factor = (self.training.clip / (norm + SMALL)).clamp(max=1.0)
            for share in shares:
                share.mul_(factor)
        return norm

    def _put(self, whole: Tensor, place: Tensor) -> Tensor:
        if not isinstance(place, DTensor):
            return super()._put(whole, place)
        share = distribute_tensor(
            whole.to(place.device, place.dtype), place.device_mesh, place.placements, src_data_rank=None
        )
        return share.clone()  # what was shared out is a view that keeps the whole


def sharded(model: nn.Module, device: torch.device) -> nn.Module:
    """`model`, of which this process keeps its share of every parameter, on `device`: blocks one by one, then the rest.

    At no time is more than one block whole on the device. The processes of the trial must have met.
    """
    mesh = DeviceMesh.from_group(cast(dist.ProcessGroup, dist.group.WORLD), device.type)
    marks = {name: vars(parameter) for name, parameter in model.named_parameters()}
    for module in [module for module in model.modules() if isinstance(module, Block)]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for name, parameter in model.named_parameters():
        _mark(parameter, marks[name])
    return model


def gathered(tensor: DTensor) -> Tensor:
    """The whole of a tensor whose rows are shared out; every process must ask for it.

    `DTensor.full_tensor` does the same by collectives whose threads at times abort a process of gloo at its end.
    """
    share = tensor.to_local().detach()
    rows, world = tensor.shape[0], tensor.device_mesh.size()
    most = -(-rows // world)
    padded = share.new_zeros(most, *share.shape[1:])
    padded[: len(share)] = share
    pieces = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(pieces, padded)
    return torch.cat(pieces)[:rows]


def _mark(parameter: nn.Parameter, marks: Mapping[str, Any]) -> None:
    """Say again of a new parameter what was said of the one that it replaces."""
    for name, value in marks.items():
        setattr(parameter, name, value)
