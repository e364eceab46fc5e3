"""One trial on several processes of equal standing, one a GPU: each takes its share of every batch, and gradients are
averaged so that a step is the one that a single process would make, but for the rounding of sums.

The first process alone evaluates, keeps checkpoints and speaks with the study.
"""

import contextlib
import datetime
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from archsearch.errors import CheckpointError, ConfigError
from archsearch.studies.tasks.task import IGNORED, Batch, Part
from archsearch.studies.training.graph import check_alone
from archsearch.studies.training.optimiser import set_learning_rate
from archsearch.studies.training.run import Run
from archsearch.studies.training.schedule import learning_rate

WAITING = datetime.timedelta(hours=1)
"""How long a process waits for the others: the first one evaluates while they do."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of a trial. rank: 0 is the first. world: how many there are. shard: whether they share
    parameters, gradients and moments too.
    """

    rank: int
    world: int
    device: torch.device
    shard: bool = False

    @property
    def is_first(self) -> bool:
        """Whether it speaks for the trial."""
        return self.rank == 0

    def wait(self) -> None:
        """Until every process is here."""
        self.told(0.0)

    def told(self, value: float) -> float:
        """What the first process gives."""
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, src=0)
        return float(shared.item())

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        whole = tensor.clone()
        dist.all_reduce(whole)
        return whole


@contextlib.contextmanager
def joined(rendezvous: Path, rank: int, world: int, device: torch.device, *, shard: bool = False) -> Generator[Ranks]:
    """The processes of a trial, which meet at a file that no other attempt uses; NCCL on GPUs, gloo without."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{rendezvous.resolve()}", rank=rank, world_size=world, timeout=WAITING
    )
    try:
        yield Ranks(rank, world, device, shard)
    finally:
        with contextlib.suppress(RuntimeError):  # the others may be gone
            dist.destroy_process_group()


def is_lost_peer(error: BaseException) -> bool:
    """Whether an exception says that another process of the trial is gone, rather than that this one is at fault."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "connection closed by peer", "connection reset by peer", "nccl")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def check_together(ranks: Ranks, fraction: float) -> None:
    """Whether every process begins at the same checkpoint; CheckpointError if one saw another."""
    if ranks.told(fraction) != fraction:
        raise CheckpointError("the processes of a trial must go on from one checkpoint; a newer one came meanwhile")


def check_shares(sequences: int, world: int, *, graphs: bool) -> None:
    """Whether batches of so many sequences can be shared by `world` processes. ConfigError."""
    if graphs:
        check_alone(world)
    if sequences < world:
        raise ConfigError(
            f"a batch needs a sequence for each of {world} processes; it has {sequences}; "
            "raise training.batch_tokens or lower resources.gpus"
        )


class SharedRun(Run):
    """A run of which this process makes its share: rows rank, rank + world, ... of every batch. How gradients become
    those of the whole batch is a subclass's matter.
    """

    def __init__(self, ranks: Ranks, *given: Any, graphs: bool) -> None:
        """given: as of `Run`. ConfigError for graphs, and for batches of fewer sequences than processes."""
        self._ranks = ranks
        super().__init__(*given)
        check_shares(self.sequences, ranks.world, graphs=graphs)

    def _train_step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        set_learning_rate(self.optimiser, learning_rate(self.training, self.step, self.steps))
        mine = slice(self._ranks.rank, None, self._ranks.world)
        counted = int((batch.targets != IGNORED).sum())
        return self._share(batch.tokens[mine], batch.targets[mine], counted)

    def _share(self, tokens: Tensor, targets: Tensor, counted: int) -> tuple[Tensor, Tensor]:
        """(loss of the whole batch, gradient norm before clipping); counted: targets of the whole batch."""
        self.optimiser.zero_grad(set_to_none=True)
        targets = targets.to(self.device, non_blocking=True)
        logits = self._forward(tokens).flatten(0, 1).float()
        own = cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum") / counted
        (own * self._ranks.world).backward()  # pyright: ignore[reportUnknownMemberType]  # gradients are averaged
        norm = self._clipped()
        self.optimiser.step()  # pyright: ignore[reportUnknownMemberType]
        return self._ranks.summed(own.detach()), norm


class ParallelRun(SharedRun):
    """A run whose model every process has, with gradients that are averaged."""

    def __init__(self, ranks: Ranks, *given: Any, graphs: bool) -> None:
        """given: as of `Run`. ConfigError for graphs, and for batches of fewer sequences than processes."""
        super().__init__(ranks, *given, graphs=graphs)
        devices = [self.device] if self.device.type == "cuda" else None
        self._shared: nn.Module = DistributedDataParallel(self.model, device_ids=devices)

    def evaluate(self, part: Part = Part.VALIDATION) -> dict[str, float]:
        """The task's values, from the first process; nothing from the others."""
        return super().evaluate(part) if self._ranks.is_first else {}

    def tensors(self) -> dict[str, Tensor]:
        """As `Run.tensors`, from the first process; nothing from the others."""
        return super().tensors() if self._ranks.is_first else {}

    def _forward(self, tokens: Tensor) -> Tensor:
        module = self._shared if self.model.training else self.model
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half):
            return module(tokens.to(self.device, non_blocking=True))


class First:
    """The first process's word with the study, told to the others too."""

    def __init__(self, supervisor: Any, ranks: Ranks) -> None:
        """supervisor: of the trial."""
        self._supervisor = supervisor
        self._ranks = ranks

    @property
    def rung_fractions(self) -> Sequence[float]:
        """As the study says."""
        return self._supervisor.rung_fractions

    def check_fence(self) -> None:
        """As the study says."""
        self._supervisor.check_fence()

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """To the study."""
        self._supervisor.record(fraction, values, seconds)

    def goes_on(self, fraction: float) -> bool:
        """As the study says; the others are told."""
        return bool(self._ranks.told(float(self._supervisor.goes_on(fraction))))


class Other:
    """What another process hears of the study."""

    def __init__(self, rung_fractions: Sequence[float], ranks: Ranks) -> None:
        """rung_fractions: as the first process has them."""
        self.rung_fractions = rung_fractions
        self._ranks = ranks

    def check_fence(self) -> None:
        """The first process looks at it."""

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """The first process does."""

    def goes_on(self, fraction: float) -> bool:
        """What the first process says."""
        return bool(self._ranks.told(0.0))
