"""Normal forms by a key that an operation can take: text, since torch's operations take no objects."""

from __future__ import annotations

import hashlib
from functools import cache

from archsearch.lowering import NormalForm

_FORMS: dict[str, NormalForm] = {}


@cache
def key(form: NormalForm) -> str:
    """The key of a form; two forms that differ in anything, names included, have two.

    Not for functions that torch compiles: a form is no constant to the compiler. Ask before, and pass the key.
    """
    text = f"{form.name}_{hashlib.sha256(repr(form).encode()).hexdigest()[:24]}"
    _FORMS[text] = form
    return text


def form(key: str) -> NormalForm:
    """The form that was given this key in this process."""
    return _FORMS[key]
