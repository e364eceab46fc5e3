"""Triton is first imported ready for its interpreter where there is no CUDA device; tests of kernels ask for it."""

from collections import Counter
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

import pytest
import torch


def _without_needless_work() -> None:
    """Triton's interpreter puts its own functions in the place of the language's again at every call inside a kernel,
    where once a launch is enough, and works out for every sum of integers whether it overflows without ever looking at
    what comes out (`debug` is off): more than half of its time. Other versions may differ and are left as they are.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    language: Any = import_module("triton.language")
    if not {"_patch_lang", "_LangPatchScope", "_get_np_dtype", "interpreter_builder"} <= set(vars(interpreter)):
        return
    prepare, run = interpreter._patch_lang, interpreter.GridExecutor.__call__
    options = interpreter.interpreter_builder.options
    assert not options.debug
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
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    _remember_types(interpreter, language.core)


def _remember_types(interpreter: Any, core: Any) -> None:
    """Every value of a kernel makes its block type anew, its shape as constants, and a table of all dtypes to look one
    up: a third of the time that is left. Equal ones are made once.
    """
    make_block, numpy_dtype = core.block_type.__init__, interpreter._get_np_dtype
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    dtypes: dict[str, Any] = {}

    def block(self: Any, element: Any, shape: Any) -> None:
        key = type(element), element.name, getattr(element, "const", None), *[getattr(n, "value", n) for n in shape]
        if key in blocks:
            self.__dict__.update(blocks[key])
            return
        make_block(self, element, shape)
        blocks[key] = dict(self.__dict__)

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes not in shapes:
            shapes[sizes] = core.constexpr(prod(sizes)), core.tuple([core.constexpr(size) for size in sizes])
        self.numel, self.shape = shapes[sizes]

    def dtype_of(kind: Any) -> Any:
        if kind.name not in dtypes:
            dtypes[kind.name] = numpy_dtype(kind)
        return dtypes[kind.name]

    core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype = block, tensor, dtype_of


if not torch.cuda.is_available():
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")  # read when triton, and every kernel, is first imported
        import_module("triton.language")
    _without_needless_work()


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device on which generated kernels run: CUDA, or the CPU under Triton's interpreter."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return torch.device("cpu")


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> Counter[str]:
    """How many cases each test of the file has, whichever of them were asked for."""
    module = request.node.getparent(pytest.Module)
    assert module is not None
    return Counter(item.originalname for item in module.collect() if isinstance(item, pytest.Function))
