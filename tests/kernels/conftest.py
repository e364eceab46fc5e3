"""Triton is first imported ready for its interpreter where there is no CUDA device; tests of kernels ask for it."""

from importlib import import_module
from typing import Any

import pytest
import torch


def _prepared_once_a_launch() -> None:
    """The interpreter puts its own functions in the place of the language's again at every call of a function in a
    kernel, a third of its time. Within a launch once is enough.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    language: Any = import_module("triton.language")
    prepare, run = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: set[frozenset[int]] = set()

    def once(function: Any) -> Any:
        seen = frozenset(id(x) for x in function.__globals__.values() if x is language or x is language.core)
        if seen in done:
            return interpreter._LangPatchScope()
        done.add(seen)
        return prepare(function)

    def launched(self: Any, *arguments: Any, **named: Any) -> None:
        done.clear()
        try:
            run(self, *arguments, **named)
        finally:
            done.clear()

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = once, launched


if not torch.cuda.is_available():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")  # read when triton, and every kernel, is first imported
        import_module("triton.language")
    _prepared_once_a_launch()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device on which generated kernels run: CUDA, or the CPU under Triton's interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return torch.device("cpu")
