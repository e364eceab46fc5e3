"""What transformers needs beside NAME.py: its classes, the keys of config.json, a tokenizer whose tokens are bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from archsearch.mixers.export.module import Module
from archsearch.mixers.export.module_text import BYTES
from archsearch.mixers.export.templates import template

START = "<|start|>"
WINDOW = 1024
"""Tokens of an evaluation's window; the model itself has no limit."""


def modeling_text(module: Module, trained: nn.Module) -> str:
    """modeling_NAME.py of a language model."""
    assert module.model is not None
    tied = module.model.tie_embeddings
    constants = [name for name, each in trained.named_parameters() if getattr(each, "_no_weight_decay", False)]
    kept = dict.fromkeys(".".join(name.split(".")[3:]) for name in constants)
    return template(
        "modeling",
        name=module.name,
        model_type=model_type(module),
        window=str(WINDOW),
        constants=", ".join(f'"{name}"' for name in kept),
        head="" if tied else "        self.head = core.head\n",
        output="self.embedding.weight" if tied else "self.head",
    )


def model_type(module: Module) -> str:
    """The key by which transformers tells kinds of models apart."""
    return f"archsearch_{module.name}"


def config_keys(module: Module) -> dict[str, Any]:
    """The keys of config.json that transformers reads."""
    if module.model is None:
        return {"model_type": model_type(module)}
    home = f"modeling_{module.name}"
    kinds = {"attention": "full_attention", "mla": "full_attention", "window": "sliding_attention"}
    return {
        "model_type": model_type(module),
        "architectures": ["ArchsearchForCausalLM"],
        "auto_map": {"AutoConfig": f"{home}.ArchsearchConfig", "AutoModelForCausalLM": f"{home}.ArchsearchForCausalLM"},
        "layer_types": [kinds.get(entry, "linear_attention") for entry in module.model.entries],
        "bos_token_id": BYTES if module.text and module.vocabulary > BYTES else None,
        "eos_token_id": None,
        "dtype": "float32",
    }


def tokenizer_files(module: Module) -> Mapping[str, str]:
    """tokenizer.json and its configuration, ids = bytes and one token that starts a text; empty for other tokens."""
    if not module.text or module.vocabulary <= BYTES:
        return {}
    start: dict[str, Any] = {"id": BYTES, "content": START, "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    layout = [{"SpecialToken": {"id": START, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**start, **flags}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": layout,
            "pair": [*layout, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {START: {"id": START, "ids": [BYTES], "tokens": [START]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": _alphabet(), "merges": []},
    }
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": START,
        "pad_token": START,
        "padding_side": "left",
        "model_max_length": WINDOW,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": _json(tokenizer), "tokenizer_config.json": _json(options)}


def _alphabet() -> dict[str, int]:
    """The characters that stand for bytes in such files: themselves where they print, else 256 and on, in order."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(BYTES) if byte not in printed]
    return {chr(byte if byte in printed else BYTES + others.index(byte)): byte for byte in range(BYTES)}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
