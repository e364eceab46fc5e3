"""From an exported directory back to a module, by archsearch's own compiler. The directory's code is never run."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import nn

from archsearch.errors import ExportError, first_line
from archsearch.kernels.dispatch import Backend
from archsearch.mixers.export.configuration import FILE, check_files, read_configuration

WEIGHTS = "model.safetensors"


def load(directory: str | Path, *, backend: Backend = "auto") -> nn.Module:
    """The module that `archsearch export` wrote: a `LanguageModel`, or a `Mixer`; in evaluation mode, on the CPU.

    Errors: ExportError for a directory that is no export, or in which one byte of one file was changed, naming it.
    """
    home = Path(directory)
    configuration = read_configuration(home)
    check_files(home, configuration)
    module = configuration.module(str(home / FILE)).build(backend)
    try:
        module.load_state_dict(tensors_of((home / WEIGHTS).read_bytes()))
    except (RuntimeError, SafetensorError) as error:
        raise ExportError(
            f"{home / WEIGHTS} does not fit the module that {FILE} describes: {first_line(error)}"
        ) from error
    return module.eval()
