"""How fast trials of a study ran, for what others would take."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archsearch.studies.files.directory import StudyDirectory


@dataclass(frozen=True, slots=True)
class Speeds:
    """Training speeds that were measured, as forward FLOPs a second: by the rule's hash, and of all rules."""

    by_rule: Mapping[str, float]
    all_rules: float | None

    def seconds(self, rule_hash: str, flops_per_token: float, tokens: int) -> float | None:
        """What `tokens` of a model would take at the speed of its rule, else of all; None where nothing ran."""
        speed = self.by_rule.get(rule_hash, self.all_rules)
        return None if speed is None else flops_per_token * tokens / speed


def speeds(directory: Path) -> Speeds:
    """The medians over the trials in a study's directory; a directory without a study has none."""
    study, found = StudyDirectory(directory), dict[str, list[float]]()
    for trial in study.trials().values() if study.exists() else ():
        result, proposal = trial.result(), trial.proposal()
        details = result.details or {} if result else {}
        rate, flops = details.get("tokens_per_second"), details.get("flops_per_token")
        if proposal is not None and rate and flops:
            found.setdefault(str(proposal["rule_hash"]), []).append(float(rate) * float(flops))
    everything = [speed for several in found.values() for speed in several]
    return Speeds(
        {rule: statistics.median(several) for rule, several in found.items()},
        statistics.median(everything) if everything else None,
    )
