"""The language model as code: the partners that its pattern names, its block, its embedding, generation."""

from __future__ import annotations

from collections.abc import Collection

from archsearch.mixers.export.lines import call
from archsearch.mixers.export.templates import template
from archsearch.mixers.models.options import Model

CACHES = {"rule": "Cache", "attention": "AttentionCache", "conv": "ConvolutionCache"}


def model_needs(model: Model) -> Collection[str]:
    """Templates of the layer that the pattern's partners need as well."""
    return {need for entry, need in (("attention", "rotated"), ("conv", "convolution")) if entry in model.entries}


def model_pieces(model: Model, heads: int) -> list[str]:
    """Classes and functions in the order in which they stand."""
    eps = repr(model.norm_eps)
    kinds = [cache for kind, cache in CACHES.items() if kind in model.entries]
    caches = kinds[0] if len(kinds) == 1 else "LayerCache"
    mlp = model.mlp_width
    return [
        *([template("attention")] if "attention" in model.entries else []),
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
            state_size=_state_size(model),
            mixers=_mixers(model, heads),
        ),
    ]


def _state_size(model: Model) -> str:
    fixed = "sum(cache.nbytes for cache in self.init_cache(1))"
    if "attention" not in model.entries:
        return f"        return {fixed}"
    grown = 'PATTERN.count("attention") * 2 * WIDTH * self.norm.weight.element_size()'
    return f"        fixed = {fixed}\n        return fixed + sequence_length * {grown}"


def _mixers(model: Model, heads: int) -> str:
    made = {
        "rule": "Mixer(WIDTH, backend=backend, chunk_size=chunk_size)",
        "attention": f"Attention(WIDTH, {heads})",
        "conv": f"ConvolutionMixer(WIDTH, {model.conv_width})",
    }
    kinds = [kind for kind in made if kind in model.entries]
    lines = [f'    if kind == "{kind}":\n        return {made[kind]}' for kind in kinds[:-1]]
    return "\n".join([*lines, f"    return {made[kinds[-1]]}"])
