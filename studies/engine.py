"""A study from its plan: lock, reconcile, search, end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from archsearch.errors import StudyError
from archsearch.holes import Choose
from archsearch.studies import records
from archsearch.studies.directory import StudyDirectory
from archsearch.studies.driver import Driver, Limits, Patience, Point
from archsearch.studies.executor import Executor
from archsearch.studies.lock import driver_lock
from archsearch.studies.plan import Plan, begin_or_compare
from archsearch.studies.proposals import Proposals
from archsearch.studies.rungs import Rungs


def carry_out(
    directory: StudyDirectory,
    plan: Plan,
    *,
    resolve: Callable[[Choose], Point],
    suggest: Callable[[Any], Choose],
    executor: Callable[[], Executor],
    limits: Limits,
    patience: Patience | None = None,
    announce: Callable[[str], None] = lambda text: None,
    on_begin: Callable[[], None] = lambda: None,
    on_look: Callable[[], None] = lambda: None,
    companions: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = lambda choices: (),
) -> None:
    """Begin the study in `directory`, or take it up where its last driver left it, and carry it to its end.

    resolve: a chooser to a point. suggest: an Optuna trial to a chooser. executor: called once the study is ours.
    on_begin: called before it, but not if the study asks something else. on_look: called each time the driver looks at
    the files. companions: see `Driver`. Errors: StudyLockedError while another driver holds it; StudyError if it was
    begun with another plan or the directory holds something else; BugError.
    """
    directory.path.mkdir(parents=True, exist_ok=True)
    _check_own(directory)
    with driver_lock(directory.lock):
        fresh = not directory.exists()
        if fresh:
            on_begin()
        begin_or_compare(directory, plan)
        if not fresh:
            on_begin()
        records.cut_torn_tail(directory.rungs)
        proposals = Proposals(directory.journal, plan.objectives, plan.sampler, seed=plan.seed, holes=plan.holes)
        for name, choices in plan.baselines.items():
            proposals.enqueue(choices, f"baseline:{name}")
        workers = executor()
        try:
            Driver(
                directory=directory,
                proposals=proposals,
                rungs=Rungs(directory.rungs, plan.rungs, plan.objectives, plan.total_tokens),
                executor=workers,
                resolve=resolve,
                suggest=suggest,
                objectives=plan.objectives,
                limits=limits,
                free_pass_every=plan.rungs.free_pass_every,
                patience=patience or Patience(),
                announce=announce,
                on_look=on_look,
                companions=companions,
            ).run()
        finally:
            workers.close()


def _check_own(directory: StudyDirectory) -> None:
    """Whether there is nothing in the directory but a study, or the beginning of one that was cut short. StudyError."""
    begun = {directory.lock.name, "config.yaml", "trials"}
    others = sorted(path.name for path in directory.path.iterdir() if path.name not in begun and path.name[0] != ".")
    if others and not directory.exists():
        raise StudyError(
            f"a study needs a directory of its own; {directory.path} holds {others[0]}; choose another directory"
        )
