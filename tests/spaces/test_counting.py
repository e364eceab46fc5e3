"""How large a space is, counted without going through all of it, and the choices that have no meaning."""

from dataclasses import replace

import pytest

from archsearch.dsl import Rule, decay, delta_write, erase, gate, key, log_decay, query, read, value
from archsearch.holes import holes, integer, one_of, optional, uniform, ways
from archsearch.mixers.models.options import Model
from archsearch.spaces.counting import census
from archsearch.spaces.lookup import READY, find_space
from archsearch.spaces.resolution import structures
from archsearch.spaces.space import Space

q, k, v, e = query("q"), key("k"), value("v"), key("e")
WRITE, ERASE, DECAY = delta_write(k, v, strength=gate("beta")), erase(e, strength=gate("gamma")), decay(log_decay("g"))


def test_ways_are_sums_over_options_and_products_over_places() -> None:
    assert ways((1, 2)) == 1
    assert ways((one_of(1, 2), integer(1, 7, 2), uniform(0.0, 1.0))) == 2 * 4
    assert ways(one_of(a=one_of(1, 2), b=3, c=(one_of(1, 2), one_of(3, 4, 5)))) == 2 + 1 + 6


def test_one_hole_used_twice_counts_once() -> None:
    shared = one_of(1, 2, 3, name="shared")
    assert ways((shared, shared)) == 3 and len(holes((shared, shared))) == 1
    assert ways((shared, one_of(a=shared, b=0))) == 3 * 2


def test_holes_that_are_decided_are_not_counted() -> None:
    tree = {"a": one_of(1, 2), "b": one_of(x=one_of(1, 2), y=0)}
    assert (ways(tree), ways(tree, ["a"]), ways(tree, ["a", "b"])) == (6, 3, 1)


@pytest.mark.parametrize("name", [name for name in READY if name != "hyperparameters"])
def test_the_count_is_that_of_going_through_all_structures(name: str) -> None:
    space = replace(find_space(name))
    assert census(space).structures == sum(1 for _ in structures(space.resolve))


def test_a_choice_without_a_meaning_is_shown_by_example() -> None:
    """Whether a scalar decay stands before or after an erase is no choice, and no erase has no place."""
    order = one_of(
        before=(optional(ERASE, name="erase"), DECAY), after=(DECAY, optional(ERASE, name="erase")), name="order"
    )
    found = census(Space(Rule("toy", order, WRITE, read(q)), Model()))
    assert (found.rules, found.distinct_rules, found.distinct_sources) == (4, 2, 2)
    assert [collapse.same_sources for collapse in found.collapses] == [True, True]
    assert found.collapses[0].first == {"rule/order": "before", "rule/order=before/erase": "no"}
    assert found.collapses[0].second == {"rule/order": "after", "rule/order=after/erase": "no"}


def test_rules_that_the_layer_alone_tells_apart_are_said_to_be() -> None:
    found = census(find_space("delta_family"))
    assert (found.structures, found.rules, found.distinct_rules, found.distinct_sources) == (36, 36, 27, 36)
    assert len(found.collapses) == 9 and not any(collapse.same_sources for collapse in found.collapses)


def test_choices_that_make_no_rule_are_counted_apart() -> None:
    steps = one_of(good=(WRITE, read(q)), bad=(read(q), WRITE, read(q)), name="steps")
    found = census(Space(Rule("made", steps), Model()))
    assert (found.rules, found.structures, len(found.broken)) == (1, 1, 1)
    choices, reason = found.broken[0]
    assert choices == {"rule/steps": "bad"} and reason == "rule 'made' must read exactly once; got 2 reads. Keep one"


def test_a_large_space_is_counted_as_far_as_the_limit() -> None:
    found = census(find_space("delta_family"), limit=10)
    assert not found.whole and found.rules == 10
