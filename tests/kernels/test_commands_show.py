"""`archsearch show`: text and JSON say the same, for the zoo and for a rule of one's own, and say it soon."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archsearch.dsl import (
    Rule,
    bonus,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    read,
    simultaneous,
    value,
)
from archsearch.errors import HoleError
from archsearch.holes import optional
from archsearch.kernels import commands
from archsearch.kernels.description import describe
from archsearch.kernels.showing import show_text
from archsearch.mixers.zoo import rules

ROOT = Path(__file__).resolve().parents[2]
q, k, e, v = query("q"), key("k"), key("e"), value("v")
MINE = Rule(
    "mine",
    read(q, bonus=bonus(key("u"), k, v)),
    decay(log_decay("g", per="channel", signed=True)),
    simultaneous(erase(e, strength=0.5 * gate("gamma"), reads="previous"), delta_write(k, v, strength=gate("beta"))),
)


@pytest.mark.parametrize("rule", [rules["q_delta"], rules["eda"], rules["linear"], MINE], ids=lambda rule: rule.name)
def test_golden_show(rule: Rule, golden: Callable[[str], None]) -> None:
    golden(show_text(describe(rule)).replace(rule.hash, "<hash>"))


@pytest.mark.parametrize("rule", [*rules.values(), MINE], ids=lambda rule: rule.name)
def test_every_rule_is_shown_with_every_operand(rule: Rule) -> None:
    text = show_text(describe(rule))
    assert all(f"  {name} " in text for name in rule.operands)
    assert rule.hash in text


def test_json_is_plain_data_and_says_what_the_text_says(capsys: pytest.CaptureFixture[str]) -> None:
    commands.show(MINE, json=True)
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(json.dumps(describe(MINE).as_json()))
    assert (said["hash"], said["code"]) == (MINE.hash, str(MINE))
    assert [operand["name"] for operand in said["operands"]] == list(MINE.operands)


def test_printing_gives_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    commands.show(rules["q_delta"], json=False)
    said = capsys.readouterr().out
    assert [line.rstrip() for line in said.splitlines()] == show_text(describe(rules["q_delta"])).splitlines()


def test_open_holes_are_refused() -> None:
    rule = Rule("open", optional(erase(e), name="erase"), delta_write(k, v), read(q))
    with pytest.raises(HoleError, match="erase"):
        commands.show(rule, json=False)


def test_a_rule_of_a_file_is_shown_within_two_seconds_and_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from archsearch import Rule, delta_write, gate, key, query, read, value\n"
        'RULE = Rule("mine", delta_write(key("k"), value("v"), strength=gate("beta")), read(query("q")))\n',
        encoding="utf-8",
    )
    code = (
        "import sys; from archsearch.cli import main\n"
        f"try: main(['show', {str(path)!r}])\n"
        "finally: print(sorted({'torch', 'triton'} & set(sys.modules)))"
    )
    before = processor_seconds()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "beta" in done.stdout and done.stdout.rstrip().endswith("[]")
    assert processor_seconds() - before < 2


def processor_seconds() -> float:
    """What the processes that ended so far have used; other work on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
