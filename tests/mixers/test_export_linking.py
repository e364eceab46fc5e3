"""Modules linked as text: imports fall away, order follows need, and equal names are told apart."""

from __future__ import annotations

import ast

from archsearch.mixers.export.linking import Source, defined_in, linked, sources
from archsearch.mixers.export.triton_text import ANSWERED, PACKAGE, launching_code

SIZES = '''"""Sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from package.plan import plan

LIMIT: int = 4


def step(x: Sequence[int]) -> int:
    """A step."""
    return math.prod(x) * LIMIT * plan(step=1)
'''
LAUNCH = """from package import sizes


def step(x):
    state = x.step
    return sizes.step([state]) + _step(x, step=2)


def _step(x, step):
    return step


@hook("space::step", step)
def run(x):
    return step(x)
"""


def test_a_module_keeps_its_body_and_knows_what_it_needs() -> None:
    source = Source.of("sizes", SIZES, "package")
    assert source.text.startswith("LIMIT: int = 4") and source.text.endswith("plan(step=1)")
    assert source.parts == ("plan",) and source.modules == ()
    assert ("math", None) in source.foreign and ("collections.abc", "Sequence") in source.foreign
    assert Source.of("launch", LAUNCH, "package").modules == ("sizes",)
    assert defined_in(source.text) == ["LIMIT", "step"]


def test_equal_names_are_told_apart_and_a_module_used_by_name_is_a_namespace() -> None:
    user = Source("user", "launch.run", modules=("launch",))
    texts = linked([Source.of("sizes", SIZES, "package"), Source.of("launch", LAUNCH, "package"), user], {"run"})
    assert texts[0].endswith("sizes = SimpleNamespace(step=step)")
    assert "def launch_step(x):" in texts[1] and "return launch_step(x)" in texts[1]
    assert "state = x.step" in texts[1] and "sizes.step([state])" in texts[1] and "_step(x, step=2)" in texts[1]
    assert '@hook("space::step", launch_step)\ndef launch_run(x):' in texts[1]
    assert texts[1].endswith("launch = SimpleNamespace(run=launch_run)")


def test_every_module_stands_after_what_it_needs() -> None:
    found = launching_code()
    names = [source.name for source in found]
    assert names[-1] == "operation" and len(names) == len(set(names))
    for index, source in enumerate(found):
        assert set(source.parts) | set(source.modules) <= {*names[:index], *ANSWERED}
    assert [source.name for source in sources(PACKAGE, "plan", ())] == ["plan"]


def test_linked_modules_define_no_name_twice() -> None:
    texts = linked(launching_code(), {"step", "run", "chunkwise"})
    names = [name for text in texts for name in defined_in(text)]
    assert len(names) == len(set(names)) and not {"step", "run", "chunkwise"} & set(names)
    assert all(isinstance(ast.parse(text), ast.Module) for text in texts)
