"""The zoo as a mapping: what it finds and how it refuses."""

import pytest

from archsearch.errors import RuleError
from archsearch.mixers.zoo import rules


def test_an_alias_is_found_and_not_listed() -> None:
    assert rules["gdn"] is rules["gated_delta_net"] and "gdn" in rules and "gdn" not in list(rules)


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(RuleError) as error:
        rules["qdelta"]
    assert str(error.value).startswith(
        "unknown rule 'qdelta'; did you mean q_delta? The zoo: linear, linear_attention, retnet"
    )
    assert isinstance(error.value, KeyError) and "qdelta" not in rules and rules.get("qdelta") is None
