"""AdamW over a model's parameters, with weight decay where it belongs."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from archsearch.spaces.options import Training


def build_optimiser(model: nn.Module, training: Training) -> AdamW:
    """AdamW in two groups: matrices decay; embeddings, vectors and parameters marked `_no_weight_decay` do not.

    On CUDA the learning rate is a tensor, so that a step reads nothing from the host and can be captured as a graph;
    not where processes share the parameters.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = [
        {
            "params": [p for name, p in trained.items() if decays(name, p)],
            "weight_decay": training.weight_decay,
        },
        {"params": [p for name, p in trained.items() if not decays(name, p)], "weight_decay": 0.0},
    ]
    device = next((p.device for p in trained.values()), torch.device("cpu"))
    is_shared = any(isinstance(p, DTensor) for p in trained.values())
    captured = device.type == "cuda" and not is_shared
    return AdamW(
        [group for group in groups if group["params"]],
        lr=torch.tensor(training.learning_rate, device=device) if captured else training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=True,
        capturable=captured,
    )


def set_learning_rate(optimiser: AdamW, rate: float) -> None:
    """The learning rate of the next step, put where the optimiser reads it, without waiting for a device."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def decays(name: str, parameter: nn.Parameter) -> bool:
    """Whether weight decay acts on a parameter."""
    is_marked = getattr(parameter, "_no_weight_decay", False)
    return parameter.ndim >= 2 and not is_marked and "embedding" not in name.split(".")
