"""Generated source as modules, in real files, since Triton reads the source; a name changes with every character."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from archsearch.errors import BackendError


def directory() -> Path:
    """Where generated modules live: ARCHSEARCH_CACHE, or archsearch/kernels under the user's cache directory."""
    given = os.environ.get("ARCHSEARCH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "archsearch" / "kernels"


def load(name: str, text: str) -> ModuleType:
    """The module with this source, written once and imported once a process.

    Errors: BackendError where the cache directory cannot be written.
    """
    module_name = f"archsearch_generated_{name}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    path = directory() / f"{module_name}.py"
    write(path, text)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def write(path: Path, text: str) -> None:
    """The file whole or not at all, whoever else writes it.

    Errors: BackendError where it cannot be written.
    """
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise BackendError(
            f"generated kernels are kept in {path.parent}, which cannot be written: {error.strerror}. "
            "Set ARCHSEARCH_CACHE to another directory"
        ) from error
