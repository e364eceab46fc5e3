"""The peer of `throughput`: one trial after another, flash-linear-attention's layers in a plain PyTorch loop.

The model is ours in sizes and blocks, the loop what one writes first: bfloat16 autocast, fused AdamW, gradients
clipped, the learning rate set at every step. On a CPU, where the peer's kernels do not run, our own layers stand in, so
that the loop can be tried.
"""

import importlib
import importlib.metadata
import math
import os
import time
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.planning import layer_of, plan_layer
from archsearch.mixers.zoo import rules
from archsearch.studies.tasks.task import IGNORED
from archsearch.studies.throughput.grid import Grid
from archsearch.studies.training.schedule import learning_rate

FIRST_STEPS = 3
"""Steps before the clock: they compile and tune."""
STORED = 64
"""Batches on the device, which the steps go round."""


class Peer(nn.Module):
    """Embedding, x + layer(norm(x)) for each layer, norm, the embedding's transpose."""

    def __init__(self, grid: Grid, name: str, device: str) -> None:
        super().__init__()
        width = grid.model.width
        self.embedding = nn.Embedding(grid.task.vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(grid.model.layers + 1))
        self.layers = nn.ModuleList(peer_layer(grid, name, device) for _ in range(grid.model.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] -> logits [B, T, vocabulary]."""
        x: Tensor = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=False):
            found: Any = layer(norm(x))
            x = x + cast(Tensor, found if isinstance(found, Tensor) else found[0])
        return F.linear(self.norms[-1](x), self.embedding.weight)


def peer_layer(grid: Grid, name: str, device: str) -> nn.Module:
    """The layer of a rule, in the sizes that ours has."""
    width, heads = grid.model.width, grid.model.heads
    if device == "cpu":
        return Mixer(rules[name], width, heads)
    layers: Any = importlib.import_module("fla.layers")
    sizes = plan_layer(rules[name], width, heads, layer_of(rules[name], None)).sizes
    match name:
        case "gated_delta_net":
            expand = sizes.value / sizes.key
            return layers.GatedDeltaNet(hidden_size=width, head_dim=sizes.key, num_heads=heads, expand_v=expand)
        case "delta_net":
            return layers.DeltaNet(hidden_size=width, num_heads=heads)
        case "simple_gla":
            simple: Any = importlib.import_module("fla.layers.simple_gla")
            return simple.SimpleGatedLinearAttention(hidden_size=width, num_heads=heads)
        case "kda":
            return layers.KimiDeltaAttention(hidden_size=width, head_dim=sizes.key, num_heads=heads)
        case _:
            raise ValueError(f"the plain loop knows gated_delta_net, delta_net, simple_gla and kda; got {name}")


def measure_rule(
    grid: Grid,
    name: str,
    trials: int,
    device: str,
    *,
    seconds: float = math.inf,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Milliseconds a step of `trials` trials of a rule, one after another, each with a model and an optimiser.

    What compiles and tunes is met once, by the first steps. seconds: after so many no further trial begins, of which
    there is one at least. tell: told what was measured as soon as it is known.
    """
    began = time.perf_counter()
    task = grid.task.build()
    batches = [task.train_batch(0, step, grid.batch) for step in range(min(STORED, grid.steps))]
    stored = [(batch.tokens.to(device), batch.targets.to(device)) for batch in batches]
    tell(f"{name}: the first step, which compiles, begins after {time.perf_counter() - began:.1f} s")
    first = _seconds(grid, name, grid.rates[0], stored, device, FIRST_STEPS)
    tell(f"{name}: {FIRST_STEPS} steps with all that is compiled, {first:.1f} s")
    taken: list[float] = []
    while len(taken) < trials and not (taken and time.perf_counter() - began > seconds):
        rate = grid.rates[len(taken) % len(grid.rates)]
        taken.append(_seconds(grid, name, rate, stored, device, grid.steps))
        tell(f"{name}: trial {len(taken)} of {trials}, {taken[-1] / grid.steps * 1000:.2f} ms a step")
    return {
        "trials": len(taken),
        "steps": grid.steps,
        "milliseconds": sum(taken) / len(taken) / grid.steps * 1000,
        "first": first,
        "path": _path(device),
    }


def _seconds(grid: Grid, name: str, rate: float, stored: list[tuple[Tensor, Tensor]], device: str, steps: int) -> float:
    torch.manual_seed(0)
    model = Peer(grid, name, device).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    training = grid.training(rate)
    _wait(device)
    began = time.perf_counter()
    for step in range(steps):
        tokens, targets = stored[step % len(stored)]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(training, step, steps)
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        nn.utils.clip_grad_norm_(model.parameters(), training.clip or math.inf)
        optimiser.step()  # pyright: ignore[reportUnknownMemberType]
    _wait(device)
    return time.perf_counter() - began


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _path(device: str) -> str:
    """What ran, in words."""
    if device == "cpu":
        return "our own layers stand in"
    packages = {package: importlib.metadata.version(package) for package in ("flash-linear-attention", "fla-core")}
    found = ", ".join(f"{package} {version}" for package, version in packages.items())
    return f"{found}, FLA_FLASH_QLA={os.environ.get('FLA_FLASH_QLA', 'unset')}"
