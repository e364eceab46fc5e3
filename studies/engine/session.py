"""A study from its plan: lock, reconcile, search, end."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from shlex import quote
from typing import Any

from optuna.exceptions import StorageInternalError

from archsearch.errors import ClusterLostError, DiskFullError, StudyError
from archsearch.holes import Choose
from archsearch.report.words import counted
from archsearch.studies.design.plan import Plan, begin_or_compare
from archsearch.studies.engine.attempts import Attempts
from archsearch.studies.engine.deciding import Deciding
from archsearch.studies.engine.driver import Driver
from archsearch.studies.engine.endings import Endings
from archsearch.studies.engine.limits import Limits, Patience
from archsearch.studies.engine.losses import Losses
from archsearch.studies.engine.proposing import Point, Proposer
from archsearch.studies.engine.signals import terminable
from archsearch.studies.engine.tried import Tried
from archsearch.studies.files import records
from archsearch.studies.files.directory import Result, StudyDirectory, TrialDirectory
from archsearch.studies.files.lock import Lock, driver_lock
from archsearch.studies.files.origins import IMPORT
from archsearch.studies.files.outcomes import DiskFull, full_disk
from archsearch.studies.search.proposals import STUDY_NAME, Proposals
from archsearch.studies.search.rungs import Rungs
from archsearch.studies.search.samplers import SamplerKind, grid
from archsearch.studies.search.storage import JOURNAL, is_full, is_there, open_storage, without_password
from archsearch.studies.workers.executor import Executor, WorkersLost


def carry_out(
    directory: StudyDirectory,
    plan: Plan,
    *,
    resolve: Callable[[Choose], Point],
    suggest: Callable[[Any], Choose],
    executor: Callable[[], Executor],
    limits: Limits,
    patience: Patience | None = None,
    storage: str = JOURNAL,
    announce: Callable[[str], None] = lambda text: None,
    on_begin: Callable[[], None] = lambda: None,
    on_look: Callable[[], None] = lambda: None,
    companions: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] = lambda choices: (),
    replicate: Callable[[int], int | None] = lambda count: None,
    taken_over: Callable[[TrialDirectory, Mapping[str, Any]], Result | None] = lambda trial, proposal: None,
    imported: Sequence[Mapping[str, Any]] = (),
    force_unlock: bool = False,
) -> bool:
    """Begin the study in `directory`, or take it up where its last driver left it, and carry it to its end; whether it
    got there, and was not asked to stop before.

    resolve: a chooser to a point. suggest: an Optuna trial to a chooser. executor: called once the study is ours.
    storage: "journal", a file of the directory, or the URL of a database. on_begin: called before a study is begun, or,
    of one that goes on, once there are workers; but not if it asks something else or is damaged. on_look: called each
    time the driver looks at the files.
    companions, replicate: see `Proposer`. taken_over: see `Driver`. imported: choices of trials of an older study,
    proposed after the baselines. force_unlock: take the study from a driver that is not known to live.
    Errors: StudyLockedError while another driver holds it; StudyError if it was begun with another plan, the directory
    holds something else or cannot be written, or the storage is another study's or does not answer; DiskFullError,
    ClusterLostError, BugError.
    """
    points = grid(resolve, plan.sampler, plan.seed) if plan.sampler.kind is SamplerKind.GRID else None
    _check_own(directory)
    if storage != JOURNAL:
        if directory.exists() and directory.trials() and not is_there(storage):
            raise _unknown(directory, without_password(storage), 0)
        open_storage(storage, directory.journal).close()  # a wrong URL is told of before anything is written
    _make(directory)
    with driver_lock(directory.lock, force=force_unlock, command=force_unlocking(directory)) as lock:
        fresh = not directory.exists()
        if fresh:
            on_begin()
        begin_or_compare(directory, plan)
        for log in (directory.rungs, directory.checks):
            records.cut_torn_tail(log)
            records.read_lines(log)  # what is damaged is told of before a trial begins
        for trial in directory.trials().values():
            trial.check()
        rungs = Rungs(directory.rungs, plan.rungs, plan.objectives, plan.total_tokens)
        directory.forget_stop()
        if storage == JOURNAL and directory.trials() and not directory.journal.exists():
            raise StudyError(f"{directory.journal} is gone: restore it from a copy of the study")
        proposals = Proposals(
            directory.journal,
            plan.objectives,
            plan.sampler,
            seed=plan.seed,
            holes=plan.holes,
            storage=storage,
            name=str(directory.plan().get("study_name", STUDY_NAME)),
            points=points,
        )
        with contextlib.ExitStack() as stack:
            stack.callback(directory.forget_stop)
            stack.callback(proposals.close)
            _check_storage(directory, proposals, storage)
            for name, choices in plan.baselines.items():
                proposals.enqueue(choices, f"{plan.origin}{name}")
            for choices in imported:
                proposals.enqueue(choices, IMPORT)
            workers = executor()
            stack.callback(workers.close)
            if not fresh:
                on_begin()
            tried, waits = Tried(), patience or Patience()
            driver = Driver(
                directory=directory,
                proposals=proposals,
                proposer=Proposer(directory, proposals, tried, resolve, suggest, companions, replicate),
                attempts=Attempts(directory, workers, waits),
                losses=Losses(waits),
                deciding=Deciding(directory, rungs, tried, plan.rungs.free_pass_every, announce),
                endings=Endings(directory, proposals, rungs, plan.objectives, announce),
                limits=limits,
                announce=announce,
                on_look=lambda: _look(lock, on_look),
                taken_over=taken_over,
            )
            stack.enter_context(terminable())
            stack.enter_context(_losses_in_words(directory, storage))
            driver.run()
        return not driver.stopped


def force_unlocking(directory: StudyDirectory) -> str:
    """What a user calls who knows that a study's driver is gone."""
    return f"archsearch study resume --force-unlock {quote(str(directory.path))}"


def _look(lock: Lock, on_look: Callable[[], None]) -> None:
    """Leave if another driver took the study by force."""
    lock.check()
    on_look()


@contextlib.contextmanager
def _losses_in_words(directory: StudyDirectory, storage: str) -> Generator[None]:
    """A database or a cluster that is lost on the way, or a disk that takes no more."""
    resume = f"archsearch study resume {quote(str(directory.path))}"
    try:
        yield
    except (OSError, DiskFull) as error:
        full = full_disk(error)
        if full is None:
            raise
        raise _no_room(str(full), resume) from error
    except StorageInternalError as error:
        if is_full(error):
            raise _no_room(f"storage {without_password(storage)} has none", resume) from error
        raise StudyError(
            f"storage {without_password(storage)} no longer answers; what has ended stands in {directory.path}: "
            f"go on with {resume}"
        ) from error
    except WorkersLost as error:
        way = f"go on with {resume}"
        if error.elsewhere:
            way = f"start a cluster and {way} resources.ray_address=HOST:PORT"
        raise ClusterLostError(f"{error}; nothing is lost: {way}") from error


def _no_room(what: str, resume: str) -> DiskFullError:
    return DiskFullError(
        f"a study needs room to write; {what}; nothing is lost: free some space, then go on with {resume}"
    )


def _make(directory: StudyDirectory) -> None:
    """Make the directory. StudyError where none can be."""
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(
            f"a study needs a directory that can be made; {directory.path} cannot: {error.strerror}; choose another"
        ) from error
    if not os.access(directory.path, os.W_OK | os.X_OK):
        raise StudyError(f"a study needs a directory that can be written; {directory.path} cannot; choose another")


def _check_storage(directory: StudyDirectory, proposals: Proposals, storage: str) -> None:
    """Whether the storage is the one that the directory's trials were proposed in. StudyError."""
    kept = directory.trials()
    told = [number for number in proposals.ended() if number not in kept]
    if told:
        gone = directory.trial(told[0]).path
        raise StudyError(f"trial {told[0]} has ended, but {gone} is gone: restore it from a copy of the study")
    if kept and max(kept) >= proposals.count():
        where = directory.journal if storage == JOURNAL else without_password(storage)
        raise _unknown(directory, str(where), proposals.count())


def _unknown(directory: StudyDirectory, where: str, count: int) -> StudyError:
    """Of a storage that knows too few of a study's trials."""
    return StudyError(
        f"{directory.path} holds trial {max(directory.trials())}, but {where} knows {counted(count, 'trial')} of it; "
        "name the storage that the study was begun with"
    )


def _check_own(directory: StudyDirectory) -> None:
    """Whether there is nothing in the directory but a study, or the beginning of one that was cut short. StudyError."""
    if directory.exists() or not directory.path.is_dir():
        return
    begun = {directory.lock.name, "config.yaml", "trials"}
    others = sorted(path.name for path in directory.path.iterdir() if path.name not in begun and path.name[0] != ".")
    if others:
        raise StudyError(
            f"a study needs a directory of its own; {directory.path} holds {others[0]}; choose another directory"
        )
