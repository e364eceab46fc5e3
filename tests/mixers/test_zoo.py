"""The zoo as a mapping: what it finds and how it refuses."""

import pytest

from archsearch.errors import RuleError
from archsearch.mixers.lookup import find_rule
from archsearch.mixers.models.options import ENTRIES
from archsearch.mixers.refused import REFUSED
from archsearch.mixers.zoo import ALIASES, NAMES, rules


def test_an_alias_is_found_and_not_listed() -> None:
    assert rules["gdn"] is rules["gated_delta_net"] and "gdn" in rules and "gdn" not in list(rules)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(RuleError) as error:
        rules["qdelta"]
    assert str(error.value).startswith(
        "unknown rule 'qdelta'; did you mean q_delta? The zoo: linear, linear_attention, retnet"
    )
    assert isinstance(error.value, KeyError) and "qdelta" not in rules and rules.get("qdelta") is None


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_rule_is_refused_by_name_in_one_line(name: str) -> None:
    with pytest.raises(RuleError) as error:
        find_rule(name)
    assert str(error.value) == f"{name!r} cannot be a rule here: {REFUSED[name]}"
    assert "\n" not in str(error.value) and name not in rules and name not in {*NAMES, *ALIASES}


def test_a_refusal_that_names_a_layer_names_one_that_exists() -> None:
    named = {reason.rpartition("model.pattern, ")[2].strip("'") for reason in REFUSED.values() if "pattern" in reason}
    assert named == {"attention", "window", "mla", "mamba", "griffin"} <= set(ENTRIES)
