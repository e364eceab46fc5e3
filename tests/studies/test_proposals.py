"""Proposals do not depend on restarts, survive a torn journal, and order stopped trials as the sampler reads them."""

from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from archsearch.studies.search.proposals import Proposals
from archsearch.studies.search.samplers import SamplerKind, SamplerOptions
from archsearch.studies.search.telling import Ending
from archsearch.studies.tasks.direction import Direction

TWO = {"recall": Direction.MAXIMIZE, "bytes": Direction.MINIMIZE}
ONE = {"loss": Direction.MINIMIZE}


def _open(path: Path, objectives: dict[str, Direction] = TWO, seed: int = 0, **options: Any) -> Proposals:
    sampler = SamplerOptions(startup=5, **options)
    return Proposals(path / "optuna.journal", objectives, sampler, seed=seed, holes=3)


def _draw(trial: optuna.Trial) -> tuple[float, ...]:
    kind = trial.suggest_categorical("kind", ("a", "b"))
    return (float(kind == "a"), trial.suggest_float(f"kind={kind}/rate", 1e-3, 1.0, log=True))


def _play(path: Path, *, restart: bool, rounds: int = 16, **options: Any) -> list[tuple[float, ...]]:
    proposals = _open(path, **options)
    points: list[tuple[float, ...]] = []
    for _ in range(rounds):
        trial, _ = proposals.ask()
        point = _draw(trial)
        points.append(point)
        if restart:
            proposals = _open(path, **options)
        proposals.tell(trial.number, Ending(values=(point[1], point[0])))
    return points


def test_restarts_do_not_change_the_proposals(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    straight = _play(tmp_path / "a", restart=False)
    assert _play(tmp_path / "b", restart=True) == straight
    assert _play(tmp_path / "c", restart=False, seed=1) != straight
    assert len(set(straight)) == len(straight)


def test_a_proposal_cut_short_is_finished_as_it_would_have_been(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    whole = _draw(_open(tmp_path / "a").ask()[0])
    trial, _ = _open(tmp_path / "b").ask()
    trial.suggest_categorical("kind", ("a", "b"))
    again = _open(tmp_path / "b")
    assert again.running() == [0]
    assert _draw(again.reopen(0)[0]) == whole


def test_a_journal_torn_in_its_last_record_stays_usable(tmp_path: Path) -> None:
    proposals = _open(tmp_path)
    for _ in range(3):
        trial, _ = proposals.ask()
        proposals.tell(trial.number, Ending(values=_draw(trial)))
    journal = tmp_path / "optuna.journal"
    journal.write_bytes(journal.read_bytes()[:-7])
    mended = _open(tmp_path)
    assert mended.running() == [2]
    mended.tell(2, Ending(values=(0.0, 1.0)))
    assert _open(tmp_path).running() == []


def test_enqueued_points_come_first_and_once(tmp_path: Path) -> None:
    proposals = _open(tmp_path)
    for _ in range(2):
        proposals.enqueue({"kind": "a", "kind=a/rate": 0.5}, "baseline:half")
        proposals = _open(tmp_path)
    assert proposals.waiting() == 1
    trial, _ = proposals.ask()
    assert _draw(trial) == (1.0, 0.5) and proposals.origin(trial.number) == "baseline:half"
    assert _open(tmp_path).waiting() == 0


def test_telling_twice_what_a_crash_interrupted_is_harmless(tmp_path: Path) -> None:
    proposals = _open(tmp_path, ONE)
    trial, _ = proposals.ask()
    _draw(trial)
    trial.set_constraint("rungs_left", 1.5)
    trial.report(3.0, 100)
    ending = Ending(constraints={"rungs_left": 1.5}, curve={100: 3.0}, attributes={"outcome": "stopped"})
    _open(tmp_path, ONE).tell(0, ending)
    assert _open(tmp_path, ONE).state(0) is TrialState.PRUNED


@pytest.mark.parametrize(
    ("ending", "state"),
    [
        (Ending(values=(1.0, 2.0)), TrialState.COMPLETE),
        (Ending(constraints={"failed.unstable": 5.0}), TrialState.PRUNED),
        (Ending(), TrialState.FAIL),
    ],
)
def test_endings_have_the_states_that_optuna_learns_from(tmp_path: Path, ending: Ending, state: TrialState) -> None:
    proposals = _open(tmp_path)
    trial, _ = proposals.ask()
    _draw(trial)
    proposals.tell(trial.number, ending)
    assert proposals.state(trial.number) is state


def test_the_installed_sampler_orders_stopped_trials_by_how_far_they_came(tmp_path: Path) -> None:
    from optuna.samplers._tpe.sampler import _split_trials  # pyright: ignore[reportPrivateUsage]

    proposals = _open(tmp_path)
    left = [2.5, 0.4, 1.7, 0.2, 2.1]
    for constraint in left:
        trial, _ = proposals.ask()
        _draw(trial)
        proposals.tell(trial.number, Ending(constraints={"rungs_left": constraint}))
    study = optuna.load_study(study_name=None, storage=proposals._study._storage)  # pyright: ignore[reportPrivateUsage]
    below, _ = _split_trials(study, study.trials, 2)
    assert sorted(trial.number for trial in below) == [1, 3]


def test_every_so_many_th_proposal_is_random(tmp_path: Path) -> None:
    proposals = _open(tmp_path, random_every=3)
    assert [proposals.ask()[1] for _ in range(6)] == ["tpe", "tpe", "random"] * 2
    assert _open(tmp_path, kind=SamplerKind.RANDOM).ask()[1] == "random"


def test_a_lock_left_by_a_killed_writer_does_not_stall_the_next(tmp_path: Path) -> None:
    _open(tmp_path)
    (tmp_path / "optuna.journal.lock").symlink_to(tmp_path / "optuna.journal")
    assert _open(tmp_path).ask()[0].number == 0
