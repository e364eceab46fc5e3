"""What every test may rely on: one thread, fixed seeds, golden files. Tests marked `gpu` are skipped where CUDA is
missing, those marked `postgresql` left out where PostgreSQL is.
"""

import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product on a GPU, in whichever test

import pytest
from hypothesis import settings

settings.register_profile("archsearch", deadline=None, derandomize=True)
settings.load_profile("archsearch")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes what the tests produce instead of comparing it."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_report_header() -> list[str]:
    """What is left out of a run, before it begins."""
    return [] if _has_postgresql() else ["left out: tests marked postgresql, since initdb is not installed"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs PostgreSQL where it is not installed, skip what needs a CUDA device where there is none."""
    if not _has_postgresql():
        left_out = [item for item in items if item.get_closest_marker("postgresql")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="gpu: needs a CUDA device"))


def _has_postgresql() -> bool:
    return shutil.which("initdb") is not None


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
