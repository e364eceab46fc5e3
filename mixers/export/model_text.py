"""The language model as code: the partners that its pattern names, its block, its embedding, generation."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from archsearch.mixers.export.lines import call
from archsearch.mixers.export.templates import shared, template
from archsearch.mixers.layer.partner_options import GriffinSizes, LatentSizes, MambaSizes
from archsearch.mixers.models.options import Model

CACHES = {
    "rule": "Cache",
    "attention": "TokenCache",
    "window": "TokenCache",
    "mla": "TokenCache",
    "mamba": "ScanCache",
    "griffin": "ScanCache",
    "conv": "ConvolutionCache",
}


def model_needs(model: Model) -> Collection[str]:
    """Templates of the layer that the pattern's partners need as well."""
    positions = {"positions"} if _attends(model) or "griffin" in model.entries else set[str]()
    convolution = {"convolution"} if {"conv", "mamba", "griffin"} & {*model.entries} else set[str]()
    return positions | convolution | ({"rotated"} if _attends(model) else set[str]())


def scans(model: Model | None) -> bool:
    """Whether a layer's state is a vector, which a scan takes through time."""
    return model is not None and bool({"mamba", "griffin"} & {*model.entries})


def _attends(model: Model) -> bool:
    return any(CACHES[entry] == "TokenCache" for entry in model.entries)


def model_pieces(model: Model, heads: int) -> list[str]:
    """Classes and functions in the order in which they stand."""
    eps = repr(model.norm_eps)
    kinds = list(dict.fromkeys(cache for kind, cache in CACHES.items() if kind in model.entries))
    caches = kinds[0] if len(kinds) == 1 else "LayerCache"
    mlp = model.mlp_width
    return [
        *([shared("attending"), template("token_mixer")] if _attends(model) else []),
        *([template("attention")] if {"attention", "window"} & {*model.entries} else []),
        *([template("latent_attention")] if "mla" in model.entries else []),
        *([template("scan_cache")] if scans(model) else []),
        *([template("mamba")] if "mamba" in model.entries else []),
        *([template("griffin")] if "griffin" in model.entries else []),
        *([template("conv_mixer")] if "conv" in model.entries else []),
        *([f"LayerCache = {' | '.join(kinds)}"] if len(kinds) > 1 else []),
        *([template("swiglu")] if mlp else []),
        template("block_mlp", norm_eps=eps, mlp_width=str(mlp), caches=caches)
        if mlp
        else template("block_plain", norm_eps=eps, caches=caches),
        template(
            "language_model",
            caches=caches,
            signature=call(
                "def forward(",
                ["self", "tokens: Tensor", f"cache: list[{caches}] | None = None", "cu_seqlens: Tensor | None = None"],
                ") -> Tensor:",
            ),
            dropout=repr(model.dropout),
            norm_eps=eps,
            head="" if model.tie_embeddings else "        self.head = normal(VOCABULARY, WIDTH)\n",
            output="self.embedding.weight" if model.tie_embeddings else "self.head",
            state_size=_state_size(model, heads),
            mixers=_mixers(model, heads),
        ),
    ]


def _state_size(model: Model, heads: int) -> str:
    fixed = "sum(cache.nbytes for cache in self.init_cache(1))"
    sizes = model.latent.sizes(model.width, heads) if "mla" in model.entries else None
    numbers = {
        "attention": "2 * WIDTH * sequence_length",
        "window": f"2 * WIDTH * min(sequence_length, {model.window - 1})",
        "mla": "" if sizes is None else f"{sizes.rank + sizes.rotary} * sequence_length",
    }
    grown = [f'PATTERN.count("{kind}") * {each}' for kind, each in numbers.items() if kind in model.entries]
    if not grown:
        return f"        return {fixed}"
    return "\n".join(
        [
            f"        fixed = {fixed}",
            call("numbers = [", grown, "]", indent=8),
            "        return fixed + sum(numbers) * self.norm.weight.element_size()",
        ]
    )


def _mixers(model: Model, heads: int) -> str:
    made = {
        "rule": "Mixer(WIDTH, backend=backend, chunk_size=chunk_size)",
        "attention": f"Attention(WIDTH, {heads})",
        "window": f"Attention(WIDTH, {heads}, {model.window})",
        "mla": _latent(model, heads),
        "mamba": _made("MambaLayer", model.mamba.sizes(model.width), "backend=backend"),
        "griffin": _griffin(model, heads),
        "conv": f"ConvolutionMixer(WIDTH, {model.conv_width})",
    }
    kinds = [kind for kind in made if kind in model.entries]
    lines = [f'    if kind == "{kind}":\n        return {made[kind]}' for kind in kinds[:-1]]
    return "\n".join([*lines, f"    return {made[kinds[-1]]}"])


def _latent(model: Model, heads: int) -> str:
    """Its sizes by name, where there is such a layer: others need not fit the width."""
    return _made("LatentAttention", model.latent.sizes(model.width, heads)) if "mla" in model.entries else ""


def _griffin(model: Model, heads: int) -> str:
    """Likewise."""
    if "griffin" not in model.entries:
        return ""
    return _made("GriffinLayer", model.griffin.sizes(model.width, heads), "backend=backend")


def _made(name: str, sizes: LatentSizes | MambaSizes | GriffinSizes, *others: str) -> str:
    arguments = ["WIDTH", *(f"{key}={size}" for key, size in asdict(sizes).items()), *others]
    return call(f"return {name}(", arguments, indent=8).strip().removeprefix("return ")
