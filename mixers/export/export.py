"""From plain data to the directory: every file written beside the target, hashed, and moved into place at the end."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import save
from torch import Tensor, nn

from archsearch import __version__
from archsearch.errors import ExportError
from archsearch.mixers.export.card import card
from archsearch.mixers.export.configuration import FILE, Configuration, config_text, described, file_hash
from archsearch.mixers.export.evidence import evidence
from archsearch.mixers.export.hugging_face import config_keys, modeling_text, tokenizer_files
from archsearch.mixers.export.load import WEIGHTS
from archsearch.mixers.export.module import Module, Origin
from archsearch.mixers.export.module_text import module_text
from archsearch.mixers.export.templates import template
from archsearch.mixers.models.language_model import LanguageModel


def export_module(
    module: Module,
    weights: Mapping[str, Tensor],
    target: str | Path,
    *,
    origin: Origin | None = None,
    overwrite: bool = False,
) -> Path:
    """Write `module` with its trained `weights` (a state dict) as a stand-alone directory; the target's path.

    overwrite: an earlier export at `target` is replaced, once the new one is whole.

    Errors: ExportError for a target that exists, or weights of another module. Nothing is left behind.
    """
    home = Path(target)
    check_target(home, overwrite=overwrite)
    trained = _trained(module, weights)
    home.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        _write(beside, module, trained, origin or Origin())
        beside.chmod(0o755)
        _move(beside, home)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return home


def check_target(home: Path, *, overwrite: bool) -> None:
    """ExportError for a target that exists, unless an earlier export is to be replaced."""
    if not home.exists():
        return
    if not overwrite:
        raise ExportError(
            f"the target must not exist; {home} does. Choose another directory, or replace it with --overwrite"
        )
    empty = home.is_dir() and not any(home.iterdir())
    if not empty and not _was_exported(home / FILE):
        raise ExportError(
            f"--overwrite replaces an earlier export; {home} is none (no {FILE} of one). Choose another directory"
        )


def _was_exported(config: Path) -> bool:
    """Whether `config` is that of an export, changed or not: a model of another origin has a config.json too."""
    try:
        data = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and "archsearch" in data


def _trained(module: Module, weights: Mapping[str, Tensor]) -> nn.Module:
    built = module.build("torch")
    own = built.state_dict()
    for name in {**own, **weights}:
        if name not in weights or name not in own or weights[name].shape != own[name].shape:
            raise ExportError(f"the weights must be those of the module that is exported; they differ in {name}")
    built.load_state_dict({name: tensor.detach().cpu().float() for name, tensor in weights.items()})
    return built.float().eval()


def _write(directory: Path, module: Module, trained: nn.Module, origin: Origin) -> None:
    counts = _counts(trained)
    versions = {"archsearch": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    (directory / f"{module.name}.py").write_text(module_text(module), encoding="utf-8")
    tensors = {name: tensor.contiguous() for name, tensor in trained.state_dict().items()}
    (directory / WEIGHTS).write_bytes(save(tensors))
    (directory / "selftest.py").write_text(template("selftest", name=module.name) + "\n", encoding="utf-8")
    (directory / "selftest.safetensors").write_bytes(save(evidence(module, trained)))
    names = [f"{module.name}.py", WEIGHTS, "selftest.py", "selftest.safetensors"]
    if module.model is not None:
        beside = {f"modeling_{module.name}.py": modeling_text(module, trained) + "\n", **tokenizer_files(module)}
        for name, text in beside.items():
            (directory / name).write_text(text, encoding="utf-8")
        names += beside
    hashes = {name: file_hash(directory / name) for name in names}
    text = card(module, counts, versions, origin, hashes)
    (directory / "README.md").write_text(text, encoding="utf-8")
    files = {**hashes, "README.md": file_hash(directory / "README.md")}
    configuration = Configuration(**described(module, counts, origin.trial), versions=versions, files=files)
    (directory / FILE).write_text(config_text(configuration, config_keys(module)), encoding="utf-8")


def _counts(trained: nn.Module) -> dict[str, int]:
    parameters = sum(parameter.numel() for parameter in trained.parameters())
    if isinstance(trained, LanguageModel):
        return {"parameters": parameters, "state_bytes": trained.state_bytes}
    return {"parameters": parameters, "state_bytes": trained.init_cache(1).nbytes}  # type: ignore[operator]


def _move(beside: Path, home: Path) -> None:
    """Into place; an earlier export makes room first and is removed last."""
    if not home.exists():
        beside.rename(home)
        return
    old = Path(mkdtemp(prefix=f".{home.name}.old.", dir=home.parent))
    home.rename(old / home.name)
    beside.rename(home)
    shutil.rmtree(old)
