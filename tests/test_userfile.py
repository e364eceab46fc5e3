"""A user's own file: found, run as it stands, and refused in one line."""

import sys
from pathlib import Path

import pytest

from archsearch import userfile
from archsearch.dsl import Rule
from archsearch.errors import RuleError
from archsearch.userfile import load_value, names_a_file

GOOD = """
from archsearch import Rule, delta_write, key, query, read, value
RULE = Rule("mine", delta_write(key("k"), value("v")), read(query("q")))
OTHER = Rule("other", delta_write(key("k"), value("v"), strength=0.5), read(query("q")))
NUMBER = 3
"""


def load(reference: str) -> Rule:
    return load_value(reference, Rule, default="RULE", error=RuleError)


def message(reference: str) -> str:
    with pytest.raises(RuleError) as caught:
        load(reference)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(GOOD, encoding="utf-8")
    return tmp_path


def test_a_file_gives_its_rule_or_the_named_one(folder: Path) -> None:
    assert load("mine.py").name == "mine"
    assert load("mine.py:OTHER").name == "other"
    assert load(str(folder / "mine.py:OTHER")).name == "other"


def test_a_file_is_read_again_at_every_call(folder: Path) -> None:
    first = load("mine.py")
    (folder / "mine.py").write_text(GOOD.replace('"mine"', '"mine2"'), encoding="utf-8")
    assert (first.name, load("mine.py").name) == ("mine", "mine2")


def test_nothing_is_written_and_the_import_path_stays(folder: Path) -> None:
    before = list(sys.path)
    load("mine.py")
    assert sys.path == before
    assert [path.name for path in folder.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("reference", "text", "expected"),
    [
        ("lost.py", None, "cannot read lost.py: No such file or directory"),
        ("bad.py", "x = (", "bad.py line 1 is no Python: '(' was never closed"),
        ("bad.py", "\nx = 1 / 0\n", "bad.py line 2 raised ZeroDivisionError: division by zero"),
        ("bad.py", "raise SystemExit(4)", "bad.py line 1 raised SystemExit: 4"),
        ("bad.py", "raise ValueError('two\\nlines')", "bad.py line 1 raised ValueError: two lines"),
        ("bad.py", "raise BaseException('out')", "bad.py line 1 raised BaseException: out"),
        ("bad.py", "\0", "bad.py is no Python: source code string cannot contain null bytes"),
        ("bad.py:", "X = 1", "bad.py defines no RULE; write RULE = Rule(...)"),
        ("bad.py", "X = 1", "bad.py defines no RULE; write RULE = Rule(...)"),
        ("bad.py", "RULE = 1", "bad.py:RULE must be a Rule; got int"),
        ("mine.py:NUMBER", None, "mine.py:NUMBER must be a Rule; got int"),
        ("mine.py:LOST", None, "mine.py defines no LOST; it has mine.py:RULE, mine.py:OTHER"),
    ],
)
def test_a_bad_file_gets_one_line(folder: Path, reference: str, text: str | None, expected: str) -> None:
    if text is not None:
        (folder / "bad.py").write_text(text, encoding="utf-8")
    assert message(reference) == expected


def test_a_file_that_never_ends_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(userfile, "SECONDS_TO_RUN", 0.1)
    (folder / "bad.py").write_text("while True:\n    pass\n", encoding="utf-8")
    assert message("bad.py").endswith(" was still running after 0.1 s; define values only")
    assert load("mine.py").name == "mine"


def test_what_a_file_prints_is_no_output_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "loud.py").write_text(f"print('loud')\n{GOOD}", encoding="utf-8")
    assert load("loud.py").name == "mine"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "loud\n")


def test_a_rule_that_means_nothing_keeps_its_own_words(folder: Path) -> None:
    (folder / "bad.py").write_text('from archsearch import Rule\nRULE = Rule("empty")\n', encoding="utf-8")
    assert message("bad.py").startswith("rule 'empty' must read exactly once")


def test_a_bare_name_is_no_file() -> None:
    assert [names_a_file(text) for text in ("q_delta", "mine.py", "a/mine.py:RULE")] == [False, True, True]
