"""Holes: paths, labels, conditions, and every error to the letter."""

from dataclasses import dataclass
from typing import Any

import pytest

from archsearch.errors import HoleError
from archsearch.holes import (
    Chosen,
    Hole,
    has_holes,
    holes,
    integer,
    is_hole,
    log_uniform,
    one_of,
    optional,
    resolve,
    uniform,
)


@dataclass(frozen=True)
class Conv:
    width: Any = 4


@dataclass(frozen=True)
class Layer:
    heads: Any = 2
    conv: Any = None
    extra: Any = ()


def test_paths_are_fields_options_and_fields_of_options() -> None:
    tree = Layer(heads=integer(1, 4), conv=one_of(none=None, short=Conv(width=integer(2, 4))))
    assert list(holes(tree)) == ["heads", "conv", "conv=short/width"]


def test_a_hole_inside_an_option_of_a_hole_keeps_the_whole_path() -> None:
    tree = Layer(conv=optional(one_of(a=Conv(uniform(0.0, 1.0)), b=Conv())))
    assert list(holes(tree)) == ["conv", "conv=yes/value", "conv=yes/value=a/width"]


def test_a_name_replaces_the_last_part_of_a_path() -> None:
    assert list(holes(Layer(heads=integer(1, 4, name="h")))) == ["h"]
    assert list(holes({"a": {"b": integer(1, 4, name="h")}})) == ["a/h"]


def test_a_bare_hole_is_called_value() -> None:
    assert resolve(one_of("x", "y"), {"value": "y"}) == "y"


def test_unnamed_holes_that_collide_get_ordinals() -> None:
    tree = Layer(extra=(integer(1, 2), integer(1, 3), integer(1, 4)))
    assert list(holes(tree)) == ["extra/value", "extra/value2", "extra/value3"]
    assert resolve(tree, {"extra/value": 1, "extra/value2": 2, "extra/value3": 3}).extra == (1, 2, 3)


def test_one_hole_at_two_places_is_one_choice() -> None:
    shared = integer(1, 9)
    tree = Layer(heads=shared, extra=(shared,))
    asked: list[str] = []

    def choose(path: str, hole: Hole) -> Chosen:
        asked.append(path)
        return len(asked)

    assert resolve(tree, choose) == Layer(heads=1, extra=(1,))
    assert asked == ["heads"]


def test_one_hole_first_met_in_an_option_is_another_choice_outside_it() -> None:
    shared = integer(1, 9)
    tree = Layer(conv=optional(Conv(shared)), extra=(shared,))
    assert list(holes(tree)) == ["conv", "conv=yes/width", "extra/value"]
    assert resolve(tree, {"conv": "no", "extra/value": 2}) == Layer(conv=None, extra=(2,))


def test_equal_named_holes_are_one_choice() -> None:
    tree = (Conv(integer(1, 4, name="w")), Conv(integer(1, 4, name="w")))
    assert list(holes(tree)) == ["w"]
    assert resolve(tree, {"w": 3}) == (Conv(3), Conv(3))


def test_only_holes_of_taken_options_are_asked() -> None:
    tree = Layer(conv=one_of(none=None, short=Conv(width=integer(2, 4))))
    assert resolve(tree, {"conv": "none"}) == Layer(conv=None)
    assert resolve(tree, {"conv": "short", "conv=short/width": 3}) == Layer(conv=Conv(3))


def test_a_choice_for_an_option_not_taken_is_no_error() -> None:
    tree = Layer(conv=one_of(none=None, short=Conv(width=integer(2, 4))))
    assert resolve(tree, {"conv": "none", "conv=short/width": 3}) == Layer(conv=None)


def test_what_is_optional_leaves_a_tuple() -> None:
    tree = Layer(extra=(1, optional("x"), 2))
    assert resolve(tree, {"extra/value": "no"}).extra == (1, 2)
    assert resolve(tree, {"extra/value": "yes"}).extra == (1, "x", 2)


def test_labels_are_texts_of_options_unless_given() -> None:
    hole = one_of(16, 0.5, None, "silu", big=64)
    assert hole.labels == ("16", "0.5", "none", "silu", "big")
    assert resolve(hole, {"value": "none"}) is None


def test_numbers_come_back_in_their_type() -> None:
    chosen = resolve((uniform(0, 4, name="a"), integer(0, 4, name="b")), {"a": 2, "b": 2})
    assert [type(number) for number in chosen] == [float, int]


def test_ends_of_ranges_are_inside() -> None:
    assert resolve(uniform(0.0, 1.0), {"value": 1.0}) == 1.0
    assert resolve(log_uniform(1e-4, 1e-2), {"value": 1e-4}) == 1e-4
    assert resolve(integer(2, 9, 3), {"value": 8}) == 8


def test_a_tree_without_holes_comes_back_itself() -> None:
    tree = Layer(extra=(1, None, Conv()))
    assert not has_holes(tree)
    assert resolve(tree, {}) is tree


def test_holes_are_found_at_any_depth() -> None:
    assert has_holes({"a": (1, {"b": Layer(conv=integer(1, 2))})})
    assert is_hole(uniform(0.0, 1.0))
    assert not is_hole(Layer())


@pytest.mark.parametrize(
    ("hole", "text"),
    [
        (one_of("a", b=None), "one_of(a=a, b=none)"),
        (uniform(0.0, 1.0), "uniform(0.0, 1.0)"),
        (log_uniform(0.1, 1.0, name="lr"), "log_uniform(0.1, 1.0, name='lr')"),
        (integer(1, 4), "integer(1, 4, 1)"),
    ],
)
def test_a_hole_prints_as_its_call(hole: Hole, text: str) -> None:
    assert str(hole) == text


PAIR = (integer(1, 4, name="a"), one_of("x", "y", name="b"))
MESSAGES = {
    "no options": (
        lambda: one_of(),
        "one_of needs at least one option; got none. Write one_of(a, b) or one_of(first=a, second=b)",
    ),
    "a label twice": (
        lambda: one_of(1, 1),
        "the options of one_of need different labels; got '1' twice. Label them: one_of(first=..., second=...)",
    ),
    "a label that is no word": (
        lambda: one_of(**{"a/b": 1, "c": 2}),  # pyright: ignore[reportArgumentType]
        "a label of one_of must be an identifier; got 'a/b'. Write one_of(first=..., second=...)",
    ),
    "a name like a path": (
        lambda: integer(1, 4, name="a/b"),
        "a hole's name must be text without / = quotes or backslashes; got 'a/b'",
    ),
    "a name that is no text": (
        lambda: optional(1, name=3),  # pyright: ignore[reportArgumentType]
        "a hole's name must be text without / = quotes or backslashes; got 3",
    ),
    "a range of texts": (
        lambda: log_uniform("a", 1),  # pyright: ignore[reportArgumentType]
        "log_uniform needs two numbers; got low='a', high=1",
    ),
    "an empty range": (lambda: uniform(1.0, 1.0), "uniform needs finite low < high; got low=1.0, high=1.0"),
    "an infinite range": (lambda: uniform(0.0, float("inf")), "uniform needs finite low < high; got low=0.0, high=inf"),
    "no logarithm": (
        lambda: log_uniform(0.0, 1.0),
        "log_uniform needs a positive range; got low=0.0. Use uniform, or a low above 0",
    ),
    "an empty logarithm": (lambda: log_uniform(2.0, 1.0), "log_uniform needs finite low < high; got low=2.0, high=1.0"),
    "an empty integer": (lambda: integer(4, 1), "integer needs finite low < high; got low=4, high=1"),
    "a step of nothing": (
        lambda: integer(1, 4, 0),
        "integer needs whole numbers and a step of at least 1; got low=1, high=4, step=0",
    ),
    "a fraction": (
        lambda: integer(1, 4.5),  # pyright: ignore[reportArgumentType]
        "integer needs whole numbers and a step of at least 1; got low=1, high=4.5, step=1",
    ),
    "a path where nothing is open": (
        lambda: resolve(3, {"c": 1}),
        "no hole is called 'c'; there are none to fill. Leave it out",
    ),
    "a path missing": (lambda: resolve(PAIR, {"a": 1}), "hole 'b' is open; give it one of 'x', 'y'"),
    "a path unknown": (lambda: resolve(PAIR, {"c": 1}), "no hole is called 'c'; the holes are 'a', 'b'"),
    "an unknown label": (lambda: resolve(PAIR, {"a": 1, "b": "z"}), "hole 'b' takes one of 'x', 'y'; got 'z'"),
    "above the range": (
        lambda: resolve(PAIR, {"a": 5, "b": "x"}),
        "hole 'a' takes a whole number from 1 to 4 in steps of 1; got 5",
    ),
    "between the steps": (
        lambda: resolve(integer(1, 9, 4), {"value": 3}),
        "hole 'value' takes a whole number from 1 to 9 in steps of 4; got 3",
    ),
    "a truth": (
        lambda: resolve(PAIR, {"a": True, "b": "x"}),
        "hole 'a' takes a whole number from 1 to 4 in steps of 1; got True",
    ),
    "a text for a number": (
        lambda: resolve(uniform(0.0, 1.0), {"value": "half"}),
        "hole 'value' takes a number from 0.0 to 1.0; got 'half'",
    ),
    "not a number": (
        lambda: resolve(uniform(0.0, 1.0), {"value": float("nan")}),
        "hole 'value' takes a number from 0.0 to 1.0; got nan",
    ),
    "a name for two holes": (
        lambda: holes((integer(1, 4, name="a"), integer(1, 5, name="a"))),
        "two different holes are called 'a'; give one of them another name=",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case: str) -> None:
    act, message = MESSAGES[case]
    with pytest.raises(HoleError) as caught:
        act()
    assert str(caught.value) == message
