"""One attempt of a trial that has several processes: what each of them does."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from archsearch.errors import first_line
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import PeerLost
from archsearch.studies.training.parallel import First, Other, is_lost_peer, joined
from archsearch.studies.training.trial import train_trial
from archsearch.studies.workers.body import TrainingBody
from archsearch.studies.workers.clerk import Assignment, Clerk, Superseded, fail, naming_full_disks, work


@naming_full_disks()
def work_as_rank(assignment: Assignment, body: TrainingBody, rank: int, world: int) -> bool:
    """Carry out one process's part of an attempt; whether it ended well.

    Whoever fails first by its own fault writes the trial's result; that another process is gone is the machine's fault,
    and is raised.
    """
    if rank == 0:
        return work(assignment, lambda clerk: _train(clerk, body, rank, world))
    clerk = Clerk(assignment)
    try:
        _train(clerk, body, rank, world)
    except Superseded:
        return False
    except Exception as error:
        if isinstance(error, PeerLost):
            raise
        if StudyDirectory(assignment.study).trial(assignment.number).result() is None:
            fail(Clerk(assignment), error)
        return False
    return True


def _train(clerk: Clerk, body: TrainingBody, rank: int, world: int) -> Mapping[str, Any]:
    body.settle_in()
    plan, known = body.planned(clerk)
    meeting = clerk.trial.path / f"ranks-{clerk.attempt}"
    try:
        with joined(meeting, rank, world, plan.device, shard=body.shard) as ranks:
            supervisor = First(clerk, ranks) if ranks.is_first else Other(clerk.rung_fractions, ranks)
            facts = train_trial(replace(plan, ranks=ranks), clerk.trial.checkpoints, supervisor)
    except RuntimeError as error:
        if is_lost_peer(error):
            raise PeerLost(f"process {rank} of {world} lost another: {first_line(error)}") from error
        raise
    return {**facts, **known, "processes": world, "sharded": body.shard}
