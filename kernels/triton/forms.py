"""Normal forms by a key that an operation can take: text, since torch's operations take no objects."""

from __future__ import annotations

import hashlib
from functools import cache

import torch

from archsearch.lowering import NormalForm

_FORMS: dict[str, NormalForm] = {}


@torch.compiler.assume_constant_result
def key(form: NormalForm) -> str:
    """The key of a form; two forms that differ in anything, names included, have two."""
    return _registered(form)


def form(key: str) -> NormalForm:
    """The form that was given this key in this process."""
    return _FORMS[key]


@cache
def _registered(form: NormalForm) -> str:
    text = f"{form.name}_{hashlib.sha256(repr(form).encode()).hexdigest()[:24]}"
    _FORMS[text] = form
    return text
