"""The package as it is installed: links, light imports, public names, pins and the wheel's contents."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import archsearch

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("kernels", "mixers", "spaces", "studies")
HEAVY = {"torch", "triton", "ray", "optuna", "transformers", "matplotlib"}


def modules_after(code: str) -> set[str]:
    """The top-level modules of a fresh process that ran `code`."""
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("floor", FLOORS)
def test_links_point_home(floor: str) -> None:
    link = ROOT / "archsearch" / floor
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{floor}"
    assert (link / "__init__.py").is_file()


def test_light_import_loads_nothing_heavy() -> None:
    assert not modules_after("import archsearch") & HEAVY


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_alone_loads_nothing_heavy(floor: str) -> None:
    assert not modules_after(f"import archsearch.{floor}") & HEAVY


def test_the_language_needs_no_torch() -> None:
    loaded = modules_after("import archsearch; archsearch.Rule; archsearch.one_of; archsearch.rules['q_delta'].hash")
    assert not loaded & HEAVY


def test_help_loads_nothing_heavy() -> None:
    code = "from archsearch.cli import main\ntry: main(['study', '--help'])\nexcept SystemExit: pass"
    assert not modules_after(code) & HEAVY


def test_no_bare_floor_is_imported() -> None:
    commands = (
        "import archsearch.cli, archsearch.kernels.commands, archsearch.mixers.commands, archsearch.studies.commands"
    )
    assert not modules_after(commands) & set(FLOORS)


def test_import_is_fast_beside_torch() -> None:
    program = "import time, torch\nstart = time.perf_counter()\nimport archsearch\nprint(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert float(done.stdout) < 1.5


def typed_names() -> set[str]:
    """The names that a type checker sees in the package's `__init__`."""
    tree = ast.parse(Path(str(archsearch.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports for alias in node.names}


def test_every_public_name_is_typed_and_loads() -> None:
    names = typed_names()
    assert names <= set(dir(archsearch))
    missing = {name for name in names if getattr(archsearch, name, None) is None}
    assert not missing


def test_a_star_import_brings_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from archsearch import *", names)
    assert {"Rule", "decay", "read", "one_of", "rules", "Space"} <= set(names) and "compile" not in names


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="archsearch has no 'ruels'; it has Budget, Griffin, Latent, Layer"):
        getattr(archsearch, "ruels")  # noqa: B009


def pins() -> dict[str, str]:
    """The constraints file as name -> version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[\[>=<~! ]", text)[0].lower() for text in wanted}
    assert names <= set(pins())


def test_torch_and_triton_are_the_pair_that_belongs_together() -> None:
    assert (pins()["torch"], pins()["triton"]) == ("2.13.0", "3.7.1")


def test_ray_and_optuna_are_pinned_to_the_releases_that_the_engine_was_written_for() -> None:
    assert pins()["ray"].startswith("2.60.") and pins()["optuna"].startswith("5.")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder / "unpacked")
    return folder / "unpacked"


def test_the_wheel_holds_the_floors_as_files(wheel: Path) -> None:
    assert (wheel / "archsearch/py.typed").exists()
    assert (wheel / "archsearch/studies/configs/quickstart.yaml").exists()
    assert all((wheel / "archsearch" / floor / "__init__.py").exists() for floor in FLOORS)
    assert [path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")] == ["archsearch"]


def test_the_wheel_runs_alone(wheel: Path) -> None:
    program = "import archsearch; print(archsearch.__file__); print(archsearch.compile(archsearch.rules['eda']).source)"
    alone = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run([sys.executable, "-c", program], cwd=wheel, env=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{wheel}/archsearch/__init__.py")
    assert "@triton.jit" in done.stdout
