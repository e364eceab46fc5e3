"""What is tried next: a trial is asked of Optuna, its point drawn, and trial.json written.

Nothing here runs. Whether a proposal repeats an earlier one, and on which seed it runs if it does, is decided here; so
is whether there is anything left to propose.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from archsearch.errors import ArchsearchError, first_line
from archsearch.holes import Choose, Chosen, Hole
from archsearch.studies.engine.tried import Tried
from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.origins import PROPOSAL
from archsearch.studies.search.listing import listed
from archsearch.studies.search.proposals import Proposals

DUPLICATES_BEFORE_LISTING = 3
DUPLICATES_BEFORE_RANDOM = 20
DUPLICATES_BEFORE_END = 60
"""Where the space cannot be listed."""


class Point(Protocol):
    """One resolved point of a search space."""

    @property
    def variant_hash(self) -> str:
        """Equal for two spellings of one variant."""
        ...

    def record(self) -> dict[str, object]:
        """Its part of trial.json: plain data, from which a worker rebuilds it."""
        ...


@dataclass(slots=True)
class Proposer:
    """Writes the proposals of a study.

    resolve: turns a chooser into a point of the space. suggest: an Optuna trial into a chooser. companions: from the
    choices of a proposal to those of trials that go with it, as the same structure at other learning rates; they follow
    at once, are part of the same proposal, and may be stopped alone. replicate: the seed on which a variant that has so
    many trials runs again when it is proposed again; None where it has enough.
    """

    directory: StudyDirectory
    proposals: Proposals
    tried: Tried
    resolve: Callable[[Choose], Point]
    suggest: Callable[[Any], Choose]
    companions: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
    replicate: Callable[[int], int | None]
    _listed: Mapping[str, Mapping[str, Chosen]] | None = None
    _looked: bool = False

    def read_back(self) -> None:
        """Count what earlier drivers proposed, and enqueue the companions that the last of them did not come to."""
        for number, trial in self.directory.trials().items():
            with records.read_as_written(trial.path / "trial.json"):
                self.tried.remember(number, trial.proposal() or {})
        newest = self.tried.newest_leader
        if newest is not None:  # only the newest can be without them: they are enqueued before anything else
            self._enqueue_companions(newest, self.directory.trial(newest).proposal() or {})

    def propose(self) -> int:
        """Write the next proposal; its number."""
        trial, sampler = self.proposals.ask(at_random=self._at_random(), among=self._among())
        return self._write(trial, sampler)

    def finish(self, number: int) -> None:
        """Draw the rest of a proposal whose driver died before trial.json was written."""
        trial, sampler = self.proposals.reopen(number, at_random=self._at_random(), among=self._among())
        self._write(trial, sampler)

    def is_spent(self) -> bool:
        """Whether every variant was tried, or so many proposals in a row were that it seems so."""
        if self.proposals.spent():
            return True
        if self.tried.duplicates_in_a_row < DUPLICATES_BEFORE_LISTING:
            return False
        left = self._untried()
        return self.tried.duplicates_in_a_row >= DUPLICATES_BEFORE_END if left is None else not left

    def _untried(self) -> list[Mapping[str, Chosen]] | None:
        """What no trial has tried, or not on all of its seeds; None where the space cannot be listed."""
        if not self._looked:
            self._listed, self._looked = listed(self.resolve), True
        if self._listed is None:
            return None
        return [choices for variant, choices in self._listed.items() if self._is_open(variant)]

    def _is_open(self, variant: str) -> bool:
        """Whether a proposal of a variant would be trained: it is new, or has a seed left to meet."""
        first = self.tried.first(variant)
        return first is None or self._next_seed(variant, first) is not None

    def _at_random(self) -> bool:
        return self.tried.duplicates_in_a_row >= DUPLICATES_BEFORE_RANDOM

    def _among(self) -> Sequence[Mapping[str, Chosen]]:
        """What chance draws from where the space can be listed, else nothing."""
        return (self._untried() or ()) if self._at_random() else ()

    def _write(self, trial: Any, sampler: str) -> int:
        """Draw the point and write trial.json, which says if an earlier trial was the same variant; the trial's
        number.
        """
        number = int(trial.number)
        variant, drawn = self._drawn(trial)
        earlier = self.tried.first(variant)
        origin, leader = self.proposals.origin(number), self.proposals.leader(number)
        seed = None
        if earlier is not None and origin == PROPOSAL and leader is None:
            seed = self._next_seed(variant, earlier)
        record: dict[str, object] = {
            "number": number,
            "origin": origin,
            "sampler": sampler if origin == PROPOSAL and leader is None else "enqueued",
            "leader": leader,
            "duplicate_of": earlier if seed is None else None,
            "variant_hash": variant,
            **drawn,
            **({} if seed is None else {"replicate_of": earlier, "seed": seed}),
        }
        self.directory.trial(number).write_proposal(record)
        self.tried.remember(number, record)
        self._enqueue_companions(number, record)
        return number

    def _drawn(self, trial: Any) -> tuple[str, dict[str, object]]:
        """The variant's hash and the point's record; of choices that make no point, the choices and why."""
        choices: dict[str, Chosen] = {}
        choose = self.suggest(trial)

        def note(path: str, hole: Hole) -> Chosen:
            choices[path] = choose(path, hole)
            return choices[path]

        try:
            point = self.resolve(note)
        except ArchsearchError as error:
            spelled = json.dumps(choices, sort_keys=True)
            return hashlib.sha256(spelled.encode()).hexdigest(), {"choices": choices, "broken": first_line(error)}
        return point.variant_hash, point.record()

    def _next_seed(self, variant: str, first: int) -> int | None:
        """The seed of the next trial of a variant; None if it is not to have one, or its rule has failed."""
        end = self.directory.trial(first).result()
        if end is not None and end.outcome.blames_the_rule:
            return None
        return self.replicate(self.tried.trials(variant))

    def _enqueue_companions(self, number: int, proposal: Mapping[str, Any]) -> None:
        """Propose what goes with a proposal next; those that are there already are not proposed again."""
        if all(proposal.get(name) is None for name in ("leader", "duplicate_of", "replicate_of")):
            for choices in self.companions(proposal["choices"]):
                self.proposals.enqueue(choices, str(proposal["origin"]), leader=number)
