"""Several trials in one worker: those that differ in seed and rates alone train as one batched model.

Each trial keeps its own files, its fence and its class of failure, as if it had a worker to itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Unstable
from archsearch.studies.training.together.group import Member, train_together
from archsearch.studies.training.together.structure import structure_of
from archsearch.studies.training.trial import Plan, train_trial
from archsearch.studies.workers.body import TrainingBody
from archsearch.studies.workers.clerk import Assignment, Clerk, Superseded, fail, naming_full_disks, work

DRAWING_THREADS = 2
"""Threads that draw the data of a group, at least."""


def gathered(assignments: Sequence[Assignment], most: int) -> list[tuple[Assignment, ...]]:
    """Groups of at most `most` trials of one structure each, in the order in which their first ones came."""
    groups: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        groups.setdefault(structure_at(assignment), []).append(assignment)
    return [tuple(group[i : i + most]) for group in groups.values() for i in range(0, len(group), most)]


def structure_at(assignment: Assignment) -> str:
    """The structure of a trial, from its proposal."""
    proposal = StudyDirectory(assignment.study).trial(assignment.number).proposal() or {}
    return structure_of(assignment.number, proposal)


def has_result(assignment: Assignment) -> bool:
    """Whether the trial ended in this attempt."""
    return StudyDirectory(assignment.study).trial(assignment.number).result() is not None


@dataclass(frozen=True, slots=True)
class _Fellow:
    """A trial of the crew. known: its sizes and costs."""

    clerk: Clerk
    plan: Plan
    known: Mapping[str, float]


@naming_full_disks()
def work_together(assignments: Sequence[Assignment], body: TrainingBody) -> bool:
    """Carry out an attempt at each of several trials; whether the process is fit for more after how they ended.

    Every trial has its result afterwards, unless its attempt was superseded. A fault of the machine is raised.
    """
    if len(assignments) == 1:
        return work(assignments[0], body)
    body.settle_in(len(assignments))
    told = _Told()
    groups: dict[str, list[_Fellow]] = {}
    for assignment in assignments:
        try:
            clerk = Clerk(assignment)
        except Superseded:
            told.clean = False
            continue
        try:
            fellow = _Fellow(clerk, *body.planned(clerk))
        except Exception as error:
            told.end(clerk, error)
            continue
        groups.setdefault(structure_of(clerk.number, clerk.proposal), []).append(fellow)
    for fellows in groups.values():
        _train(fellows, body, told)
    return told.clean


class _Told:
    """What became of the trials so far.

    clean: whether the process is fit for more; a loss that is no longer finite harms nothing but its trial. ended:
    numbers of those that have. lost: the machine's fault, if one came.
    """

    def __init__(self) -> None:
        self.clean = True
        self.ended: set[int] = set()
        self.lost: Exception | None = None

    def end(self, clerk: Clerk, how: Mapping[str, Any] | Exception) -> None:
        """Write the result of a trial, behind its fence. A fault of the machine is raised."""
        self.ended.add(clerk.number)
        self.clean = self.clean and (isinstance(how, Unstable) or not isinstance(how, Exception))
        try:
            if not isinstance(how, Exception):
                clerk.conclude(how)
            elif not isinstance(how, Superseded):
                fail(clerk, how)
        except Superseded:
            return
        except Exception as fault:
            self.lost = fault
            raise


def _train(fellows: Sequence[_Fellow], body: TrainingBody, told: _Told) -> None:
    """Carry trials of one structure to their ends. What runs out of memory on a shared GPU is tried again alone."""

    def end(place: int, how: Mapping[str, Any] | Exception) -> None:
        fellow = fellows[place]
        if isinstance(how, Exception):
            told.end(fellow.clerk, body.crowded_out(how, alone=False))
        else:
            told.end(fellow.clerk, {**how, **fellow.known})

    try:
        if len(fellows) == 1:
            clerk = fellows[0].clerk
            end(0, train_trial(fellows[0].plan, clerk.trial.checkpoints, clerk))
        else:
            members = [Member(fellow.plan, fellow.clerk.trial.checkpoints, fellow.clerk) for fellow in fellows]
            train_together(members, end, threads=max(body.threads, DRAWING_THREADS))
    except Exception as error:
        if told.lost is not None:
            raise
        for fellow in fellows:
            if fellow.clerk.number not in told.ended:
                told.end(fellow.clerk, body.crowded_out(error, alone=False))
