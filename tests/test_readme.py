"""The README runs: its files are written, its Python and its commands end well, and its table is the zoo's."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from archsearch import rules
from archsearch.cli import main
from archsearch.lowering.display import one_line

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def blocks() -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block, in order."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE):
        yield match[1], match[2]


SHORTER = {
    "train": [
        "evaluations=1",
        "tasks.mqar.tokens=8_192",
        "tasks.mqar.evaluation=16",
        "tasks.text.tokens=8_192",
        "tasks.text.max_bytes=200_000",
        "tasks.text.evaluation_bytes=4_096",
    ]
}
"""What a test adds to a command, so that it ends in seconds."""


def run_commands(text: str) -> None:
    """Each line is a command line of archsearch, and succeeds."""
    for line in text.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "archsearch"
        arguments += SHORTER.get(arguments[0], [])
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0, line


def test_everything_in_fences_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    session: dict[str, object] = {}
    for language, text in blocks():
        if name := re.match(r"# (\S+\.(?:py|yaml))\n", text):
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
        elif language == "sh":
            run_commands(text)
        else:
            assert language == "python"
            exec(compile(text, "README.md", "exec"), session)
    assert (tmp_path / "exported" / "selftest.py").exists()


def test_the_table_is_the_zoo() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (Sₜ = .*?) \| .* \|$", README, re.MULTILINE)
    assert listed == [(name, one_line(rule)) for name, rule in rules.items()]


def test_the_two_commands_stand_in_the_readme() -> None:
    assert re.search(r"^    make study .*\n    make test ", README, re.MULTILINE)
