"""Exact counts of the layers of a pattern that are no rule. No tensors."""

from __future__ import annotations

from typing import Literal, get_args

from archsearch.mixers.layer.partner_options import GriffinSizes, LatentSizes, MambaSizes
from archsearch.mixers.models.options import Model

Partner = Literal["attention", "window", "mla", "mamba", "griffin", "conv"]
PARTNERS: tuple[Partner, ...] = get_args(Partner)


def parameters(partner: Partner, model: Model) -> int:
    """Trained numbers of one layer."""
    width = model.width
    match partner:
        case "attention" | "window":
            return 4 * width * width
        case "mla":
            sizes = model.latent.sizes(width, model.heads)
            return _latent_weights(sizes, width) + sizes.rank + sizes.query_rank
        case "mamba":
            sizes = model.mamba.sizes(width)
            return _mamba_weights(sizes, width) + sizes.channels * (sizes.conv + 3 + sizes.state)
        case "griffin":
            sizes = model.griffin.sizes(width, model.heads)
            return _griffin_weights(sizes, width) + sizes.channels * (sizes.conv + 4)
        case "conv":
            return width * width + width + width * (model.conv_width + 1)


def flops(partner: Partner, model: Model, length: int) -> float:
    """Forward FLOPs a token of a sequence of `length` tokens."""
    width = model.width
    match partner:
        case "attention" | "window":
            return 8 * width * width + 4 * width * _seen(partner, model, length)
        case "mla":
            sizes = model.latent.sizes(width, model.heads)
            products = 2 * sizes.heads * (sizes.content + sizes.rotary + sizes.value)
            return 2 * _latent_weights(sizes, width) + products * _seen(partner, model, length)
        case "mamba":
            sizes = model.mamba.sizes(width)
            own = sizes.channels * (2 * sizes.conv + 6 * sizes.state + 3)
            return 2 * _mamba_weights(sizes, width) + own
        case "griffin":
            sizes = model.griffin.sizes(width, model.heads)
            return 2 * _griffin_weights(sizes, width) + sizes.channels * (2 * sizes.conv + 2)
        case "conv":
            return 2 * width * width + 2 * width * model.conv_width


def memory(partner: Partner, model: Model, length: int) -> int:
    """Numbers kept of one sequence after `length` tokens."""
    match partner:
        case "attention":
            return 2 * model.width * length
        case "window":
            return 2 * model.width * min(length, model.window - 1)
        case "mla":
            sizes = model.latent.sizes(model.width, model.heads)
            return (sizes.rank + sizes.rotary) * length
        case "mamba":
            sizes = model.mamba.sizes(model.width)
            return sizes.channels * (sizes.state + sizes.conv - 1)
        case "griffin":
            sizes = model.griffin.sizes(model.width, model.heads)
            return sizes.channels * sizes.conv
        case "conv":
            return model.width * (model.conv_width - 1)


def _seen(partner: Partner, model: Model, length: int) -> float:
    """Tokens that one sees on average, itself among them."""
    most = min(length, model.window) if partner == "window" else length
    return most - most * (most - 1) / (2 * length) if length else 0.0


def _mamba_weights(sizes: MambaSizes, width: int) -> int:
    """Of its linear maps. The scan itself takes 6 N + 1 multiplications and additions a channel, the skip 2."""
    return sizes.channels * (3 * width + 2 * (sizes.rank + sizes.state))


def _griffin_weights(sizes: GriffinSizes, width: int) -> int:
    """Of its linear maps, two of them block-diagonal."""
    return sizes.channels * (3 * width + 2 * sizes.channels // sizes.blocks)


def _latent_weights(sizes: LatentSizes, width: int) -> int:
    """Of its linear maps."""
    queries = sizes.query_rank * (width + sizes.queries) if sizes.query_rank else width * sizes.queries
    made = sizes.heads * sizes.rank * (sizes.content + sizes.value)
    return queries + width * (sizes.rank + sizes.rotary) + made + sizes.heads * sizes.value * width
