"""A small trial, and what two processes find that share it: `python shared_trial.py HOME RANK` is one of them.

Imported by the tests, which train it in one process.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.planning import layer_of
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules
from archsearch.spaces.options import Training
from archsearch.studies.tasks.mqar import Mqar, MqarOptions
from archsearch.studies.training.optimiser import decays
from archsearch.studies.training.parallel import First, Other, Ranks, joined
from archsearch.studies.training.sharding import sharded
from archsearch.studies.training.trial import Entry, Plan, train_trial

HALF = 0.5
MODEL = Model(width=24, heads=3, layers=2, pattern=("rule", "attention"), tie_embeddings=False)
"""Three heads on two processes: shares are of unequal sizes."""


@dataclass
class Notes:
    """A supervisor that keeps the evaluations, and stops where it is told."""

    until: float = 1.0
    curve: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    rung_fractions = (1.0,)

    def check_fence(self) -> None:
        """Nobody else trains it."""

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        """Keep it."""
        self.curve.append({"fraction": fraction, **values})

    def goes_on(self, fraction: float) -> bool:
        """Until it is told to stop."""
        return fraction < self.until


def build(vocabulary: int) -> LanguageModel:
    """The model; of its matrices, a token shift's does not decay."""
    rule = rules["gated_delta_net"]
    return LanguageModel(rule, MODEL, replace(layer_of(rule, None), token_shift=True), vocabulary)


def plan() -> Plan:
    """The trial: so small a clip that every step is clipped, by the norm of all gradients."""
    task = Mqar(MqarOptions(length=16, pairs=2, vocabulary=16, evaluation=8))
    training = Training(batch_tokens=80, learning_rate=0.01, clip=0.1, weight_decay=0.1)
    return Plan([Entry(task, 16 * 80)], lambda task: build(task.vocabulary), training, 0, torch.device("cpu"))


def trained(checkpoints: Path, ranks: Ranks | None = None, until: float = 1.0) -> list[dict[str, float]]:
    """The evaluations of the trial from its newest checkpoint to `until`; of several processes the first one's."""
    notes = Notes(until)
    supervisor: Any = notes
    if ranks is not None:
        supervisor = First(notes, ranks) if ranks.is_first else Other(notes.rung_fractions, ranks)
    train_trial(replace(plan(), ranks=ranks), checkpoints, supervisor)
    return notes.curve


def split(ranks: Ranks) -> dict[str, Any]:
    """How a sharded model lies on this process, what its rule is given, and which of its parameters decay."""
    whole, shared = build(20), sharded(build(20), ranks.device)
    given: list[str] = []
    mixer = cast(Mixer, cast(Any, shared).blocks[0].mixer)
    rule = mixer.compiled

    def watched(**operands: Any) -> Any:
        given.extend(type(each).__name__ for each in operands.values() if isinstance(each, Tensor))
        return rule(**operands)

    mixer.compiled = cast(Any, watched)
    shared(torch.zeros(2, 8, dtype=torch.int64)).sum().backward()
    return {
        "kept": sum(cast(DTensor, parameter).to_local().numel() for parameter in shared.parameters()),
        "gradients": sum(cast(DTensor, parameter.grad).to_local().numel() for parameter in shared.parameters()),
        "whole": sum(parameter.numel() for parameter in whole.parameters()),
        "parameters": len(list(whole.parameters())),
        "given": given,
        "decay": [_decaying(whole), _decaying(shared)],
    }


def _decaying(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if decays(name, parameter)]


def main(home: Path, rank: int) -> None:
    """Be one of two processes; the first one writes what they found."""
    torch.set_num_threads(1)
    with joined(home / "meeting", rank, 2, torch.device("cpu"), shard=True) as ranks:
        found = {
            "split": split(ranks),
            "whole": trained(home / "sharded", ranks),
            "before": trained(home / "resumed", ranks, until=HALF),
        }
        if ranks.is_first:
            shutil.copytree(home / "resumed", home / "left")
        ranks.wait()
        found["after"] = trained(home / "resumed", ranks)
        found["taken up"] = trained(home / "alone", ranks)
        found["averaged"] = trained(home / "averaged", replace(ranks, shard=False))
    (home / f"found-{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
