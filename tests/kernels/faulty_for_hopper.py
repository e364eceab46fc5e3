"""One kernel of a rule compiled for sm_90 with a line of its template changed; test_planted_faults runs it."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from archsearch.kernels.triton import generation


def main(rule: str, kernel: str, right: str, wrong: str) -> None:
    """Prints what compiled_for_hopper does, of that kernel alone. Fails where the line no longer stands there."""
    spec = importlib.util.spec_from_file_location(
        "compiled_for_hopper", Path(__file__).with_name("compiled_for_hopper.py")
    )
    assert spec is not None and spec.loader is not None
    hopper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hopper)
    sound, compiled = generation.filled, hopper.Kernel.compiled

    def filled(name: str, holes: Any, flags: Any) -> str:
        text = sound(name, holes, flags)
        assert name != kernel or right in text, f"{kernel} no longer holds {right!r}"
        return text.replace(right, wrong) if name == kernel else text

    def only(self: Any, *tensors: Any, **named: Any) -> None:
        if self.function.__name__ == kernel:
            compiled(self, *tensors, **named)

    generation.filled, hopper.Kernel.compiled = filled, only
    hopper.main(rule, 8, 4096, 16, 128, 128)


if __name__ == "__main__":
    main(*sys.argv[1:])
