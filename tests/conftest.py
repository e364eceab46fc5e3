"""What every test may rely on: one thread, fixed seeds, golden files, and `gpu` tests skipped where CUDA is missing, or
shared out by the kernels that they compile.
"""

import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product on a GPU, in whichever test

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from archsearch.dsl import Rule
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

settings.register_profile("archsearch", deadline=None, derandomize=True)
settings.load_profile("archsearch")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes what the tests produce instead of comparing it."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none; where there is one, begin with what takes longest."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        items.sort(key=lambda item: _compiling(item.nodeid), reverse=True)
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="gpu: needs a CUDA device"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """With `--dist loadgroup`, cases that compile the same kernels go to one process: two would compile them twice."""
    return ByKernels(config, log) if config.getoption("dist") == "loadgroup" else None


class ByKernels(LoadScopeScheduling):
    """Cases of one test about one rule in one dtype are together, all others alone."""

    def _split_scope(self, nodeid: str) -> str:
        test, rule, dtype = _kernels(nodeid)
        return nodeid if rule is None else f"{test} {rule.name} {dtype}"


def _kernels(nodeid: str) -> tuple[str, Rule | None, str]:
    """What a case's name says: its test, the rule that it is about, and the dtype, bfloat16 where it names none."""
    test, _, parameters = nodeid.rstrip("]").partition("[")
    parts = parameters.split("-")
    known = _named_rules()
    rule = next((known[part] for part in parts if part in known), None)
    return test, rule, next((part for part in parts if part.startswith("torch.")), "torch.bfloat16")


@cache
def _named_rules() -> dict[str, Rule]:
    from archsearch.kernels.conformance import made_up  # imports Triton: not before a test's own conftest

    return {rule.name: rule for rule in (*made_up.LONG, *made_up.RULES, *rules.values())}


def _compiling(nodeid: str) -> float:
    """Roughly the seconds that a core compiles for a case. A rule drawn at random has up to four steps, any decays."""
    test, rule, dtype = _kernels(nodeid)
    wider = 1.0 if dtype == "torch.bfloat16" else 1.5
    if rule is None:
        return 50 * wider if "random" in test or "long" in test else 0.0
    form = lower(rule)
    return (14 if form.decay_kind == "channel" else 4) * min(4, len(form.rows)) * wider


@pytest.fixture(autouse=True)
def _same_numbers_every_run() -> Iterator[None]:
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Compare a text with `tests/golden/<file>/<test>.txt`; a missing file fails and prints the command."""
    name = re.sub(r"[^\w.-]+", "_", request.node.name).strip("_")
    path = GOLDEN / Path(request.node.path).stem / f"{name}.txt"
    update = bool(request.config.getoption("--update-golden"))

    def compare(text: str) -> None:
        text = text.rstrip() + "\n"
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = f'python -m pytest "{request.node.nodeid}" --update-golden'
        assert path.exists(), f"no golden file {path}; write it with: {command}"
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; if that is right: {command}"

    return compare
