"""archsearch: an update rule, written as its equation, becomes a trained and measured sequence mixer.

The public names, each loaded when it is first used: importing archsearch alone loads no torch, Triton, Ray or Optuna.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from archsearch.dsl import Rule as Rule
    from archsearch.dsl import bonus as bonus
    from archsearch.dsl import channel_gate as channel_gate
    from archsearch.dsl import decay as decay
    from archsearch.dsl import delta_write as delta_write
    from archsearch.dsl import erase as erase
    from archsearch.dsl import gate as gate
    from archsearch.dsl import key as key
    from archsearch.dsl import log_decay as log_decay
    from archsearch.dsl import query as query
    from archsearch.dsl import query_feedback as query_feedback
    from archsearch.dsl import read as read
    from archsearch.dsl import simultaneous as simultaneous
    from archsearch.dsl import value as value
    from archsearch.dsl import write as write
    from archsearch.holes import integer as integer
    from archsearch.holes import log_uniform as log_uniform
    from archsearch.holes import one_of as one_of
    from archsearch.holes import optional as optional
    from archsearch.holes import uniform as uniform
    from archsearch.kernels.dispatch import compile as compile
    from archsearch.mixers.export.load import load as load
    from archsearch.mixers.layer.mixer import Mixer as Mixer
    from archsearch.mixers.layer.options import Layer as Layer
    from archsearch.mixers.layer.partner_options import Griffin as Griffin
    from archsearch.mixers.layer.partner_options import Latent as Latent
    from archsearch.mixers.layer.partner_options import Mamba as Mamba
    from archsearch.mixers.models.options import Model as Model
    from archsearch.mixers.zoo import rules as rules
    from archsearch.spaces.options import Budget as Budget
    from archsearch.spaces.options import Training as Training
    from archsearch.spaces.resolution import resolve as resolve
    from archsearch.spaces.space import Space as Space
    from archsearch.studies.engine.run import run_study as run_study

_HOME = {
    "archsearch.dsl": "Rule bonus channel_gate decay delta_write erase gate key log_decay query query_feedback read"
    " simultaneous value write",
    "archsearch.holes": "integer log_uniform one_of optional uniform",
    "archsearch.kernels.dispatch": "compile",
    "archsearch.mixers.export.load": "load",
    "archsearch.mixers.layer.mixer": "Mixer",
    "archsearch.mixers.layer.options": "Layer",
    "archsearch.mixers.layer.partner_options": "Griffin Latent Mamba",
    "archsearch.mixers.models.options": "Model",
    "archsearch.mixers.zoo": "rules",
    "archsearch.spaces.options": "Budget Training",
    "archsearch.spaces.resolution": "resolve",
    "archsearch.spaces.space": "Space",
    "archsearch.studies.engine.run": "run_study",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker knows the names above, and reports any other
    # a file's `from archsearch import *`: what needs no torch and hides no builtin
    __all__ = tuple(name for name in _MODULE_OF if name not in ("Mixer", "compile", "load", "run_study"))

    def __getattr__(name: str) -> object:
        """Load a public name from its module and keep it (PEP 562)."""
        if name not in _MODULE_OF:
            raise AttributeError(f"archsearch has no {name!r}; it has {', '.join(sorted(_MODULE_OF))}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *_MODULE_OF})
