"""AdamW over a model's parameters, with weight decay where it belongs."""

from torch import nn
from torch.optim import AdamW

from archsearch.spaces.options import Training


def build_optimiser(model: nn.Module, training: Training) -> AdamW:
    """AdamW in two groups: matrices decay; embeddings, vectors and parameters marked `_no_weight_decay` do not."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = [
        {
            "params": [p for name, p in trained.items() if _decays(name, p)],
            "weight_decay": training.weight_decay,
        },
        {"params": [p for name, p in trained.items() if not _decays(name, p)], "weight_decay": 0.0},
    ]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        eps=training.epsilon,
        fused=True,
    )


def _decays(name: str, parameter: nn.Parameter) -> bool:
    is_marked = getattr(parameter, "_no_weight_decay", False)
    return parameter.ndim >= 2 and not is_marked and "embedding" not in name.split(".")
