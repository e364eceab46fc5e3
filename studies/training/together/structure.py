"""What trials must share to train as one batched model, told from their proposals."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from archsearch.studies.training.together.folding import BATCHED_LAYERS
from archsearch.studies.training.together.group import OWN_OPTIONS

SHARED = ("rule", "layer", "model", "budget")


def structure_of(number: int, proposal: Mapping[str, Any]) -> str:
    """Of the options that trials must share; of models that cannot be batched each trial is a structure of its own."""
    model, training = (cast(Mapping[str, Any], proposal.get(name) or {}) for name in ("model", "training"))
    shared = {name: value for name, value in training.items() if name not in OWN_OPTIONS}
    alone = bool(model.get("dropout")) or not BATCHED_LAYERS.issuperset(model.get("pattern", ()))
    text = json.dumps([number if alone else None, shared, *(proposal.get(name) for name in SHARED)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
