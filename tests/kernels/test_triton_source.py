"""What can be said of the generated kernels by reading them."""

import ast
import re
from pathlib import Path

import pytest

from archsearch.dsl import Rule
from archsearch.errors import BackendError
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.dispatch import compile
from archsearch.kernels.triton import generation, modules
from archsearch.kernels.triton.plan import tokens_of_chunk
from archsearch.kernels.triton.strengths import at_writes
from archsearch.lowering import lower
from archsearch.mixers.zoo import rules

NAMED: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}
LOOPS = {
    "tl.range(begin, end, num_stages=STAGES)",  # chunks of a sequence
    "tl.range(tl.minimum(group, count - first), num_stages=1)",  # chunks that may be strong
    "tl.range(0, V, BV, num_stages=STAGES)",  # blocks of channels
    "range(0, V, BV)",
    "range(part * BV, V, blocks * BV)",
    "range(0, K, BK)",
    "tl.range(0, once, num_stages=2)",  # once: a loop's loads run ahead
    "tl.static_range(1)",
    "tl.static_range(2)",  # halves, quarters, ... of a chunk
    "tl.range(LEVELS, num_stages=1)",
    "tl.range(2, 4, num_stages=1)",
    "tl.range(4, LEVELS, num_stages=1)",
    "tl.static_range(1, 4)",
    "tl.static_range(TIMES)",  # doublings of a tile
    "tl.static_range(1, BLOCKS)",  # parts of a sum
}
"""Every loop that a generated kernel may have, apart from the one over the substeps of a token."""


def loops_of(source: str) -> set[str]:
    """What the loops of a generated module go through."""
    return {ast.unparse(node.iter) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)}


@pytest.mark.parametrize("rule", NAMED.values(), ids=lambda rule: rule.name)
def test_no_kernel_walks_token_by_token(rule: Rule) -> None:
    source = generation.source(lower(rule))
    assert loops_of(source) <= LOOPS | {f"range({len(rule_rows(rule))})"}
    assert not any(isinstance(node, ast.While) for node in ast.walk(ast.parse(source)))


def test_no_loop_is_allowed_that_no_kernel_has() -> None:
    assert set().union(*(loops_of(generation.source(lower(rule))) for rule in NAMED.values())) >= LOOPS


@pytest.mark.parametrize("rule", NAMED.values(), ids=lambda rule: rule.name)
def test_source_names_its_rule_and_has_no_holes_left(rule: Rule) -> None:
    source = generation.source(lower(rule))
    assert rule.hash in source
    assert str(at_writes(lower(rule))) in source
    assert "$" not in source
    assert max(map(len, source.split('"""', 2)[2].splitlines())) <= 120
    assert not re.search(r"^#(if|else|end)", source, re.MULTILINE)


def test_source_does_not_depend_on_the_backend() -> None:
    rule = rules["q_delta"]
    assert (
        compile(rule, "reference").source
        == compile(rule, "torch", chunk_size=16).source
        == generation.source(lower(rule))
    )


def test_a_rule_loads_what_it_uses_and_nothing_else() -> None:
    assert "inverted" not in generation.source(lower(rules["gla"]))
    assert "left_between" not in generation.source(lower(rules["gated_delta_net"]))
    assert "kept" not in generation.source(lower(rules["gated_delta_net"])).replace("kept_", "")


def test_the_module_lives_in_a_file_that_changes_with_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHSEARCH_CACHE", str(tmp_path))
    one, other = modules.load("some_rule", "x = 1\n"), modules.load("some_rule", "x = 2\n")
    assert (one.x, other.x) == (1, 2)
    assert Path(one.__file__ or "").read_text() == "x = 1\n"
    assert modules.load("some_rule", "x = 1\n") is one
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".py", ".py"]


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ARCHSEARCH_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(BackendError) as error:
        modules.load("some_rule", "x = 3\n")
    assert str(error.value) == (
        f"generated kernels are kept in {tmp_path}/file/below, which cannot be written: Not a directory. "
        "Set ARCHSEARCH_CACHE to another directory"
    )


@pytest.mark.parametrize(
    ("span", "asked", "tokens"),
    [
        (1, None, 64),
        (2, None, 32),
        (4, None, 16),
        (1, 16, 32),
        (1, 40, 32),
        (1, 1000, 64),
        (1, 1, 32),
        (2, 64, 32),
        (2, 16, 16),
    ],
)
def test_a_chunk_is_a_power_of_two_that_fits(span: int, asked: int | None, tokens: int) -> None:
    assert tokens_of_chunk(span, asked) == tokens


def rule_rows(rule: Rule) -> tuple[object, ...]:
    return lower(rule).rows
