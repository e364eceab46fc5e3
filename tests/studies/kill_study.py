"""Drivers, workers and a node of a Ray cluster killed at random until a study ends; then every trial is compared.

    python tests/studies/kill_study.py --kills 100 --trials 40 --slots 1     # about ten minutes
    python tests/studies/kill_study.py --kills 100 --trials 40 --slots 2
    python tests/studies/kill_study.py --kills 20 --heads 5 --trials 40      # the heads of clusters too

The cluster has two nodes of this machine; one of them is killed with everything on it and comes back seconds later.
Where heads are killed, the driver must end by itself in one line, and the study goes on on a new cluster.
With one slot the study must end exactly as one that nobody killed: the same proposals, outcomes and values. With
several the order of the endings decides about the proposals, and every trial must have the value that its point has.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import toy_study
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from archsearch.studies.files import records
from archsearch.studies.files.directory import StudyDirectory

CPUS = 1
"""Of each node."""

SECONDS_TO_TRY_AGAIN = 5.0
"""For a node, on a machine that is too busy to start one."""
TRIES = 5
"""Of a head there, each of half a minute."""

STORE = 80 * 2**20
"""Bytes of each node's object store."""

Rows = list[tuple[Any, ...]]


@dataclass
class Havoc:
    """What is killed how often, and when next. targets: what one after another; drawn where none are named."""

    draw: random.Random
    kills: int
    pause: float
    heads: int = 0
    targets: Sequence[str] = ()
    counts: Counter[str] = field(default_factory=Counter[str])

    @property
    def left(self) -> bool:
        """Whether there is more to kill."""
        return self.counts.total() < self.kills

    def target(self) -> str:
        """What to kill next."""
        if self.targets:
            return self.targets[self.counts.total()]
        if self.counts["head"] * (self.kills + 1) < self.heads * (self.counts.total() + 1):
            return "head"
        return self.draw.choices(("driver", "worker", "node"), (9, 9, 2))[0]


class LocalCluster:
    """Two nodes on this machine: the head, which stays until the cluster is renewed, and one that comes and goes."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        from ray.cluster_utils import Cluster

        for left in reversed(range(TRIES)):
            self._cluster = Cluster()
            try:
                self._cluster.add_node(num_cpus=CPUS, object_store_memory=STORE, include_dashboard=False)
                break
            except Exception as error:  # Ray raises nothing narrower where a node takes too long to start
                if not left:
                    raise
                print(f"no head: {error}", file=sys.stderr)
                self._cluster.shutdown()
        self.address = str(self._cluster.address)
        self._node: Any = None
        self._back = 0.0
        self.restore()

    def restore(self) -> None:
        """Bring the second node back when its time has come."""
        if self._node is not None or time.monotonic() < self._back:
            return
        try:
            self._node = self._cluster.add_node(num_cpus=CPUS, object_store_memory=STORE)
        except Exception as error:  # Ray raises nothing narrower where a node takes too long to start
            print(f"no node: {error}", file=sys.stderr)
            self._back = time.monotonic() + SECONDS_TO_TRY_AGAIN

    def kill_node(self, away: float) -> bool:
        """SIGKILL every process of the second node, which stays away for some seconds; False if it is away."""
        if self._node is None:
            return False
        self._cluster.remove_node(self._node, allow_graceful=False)
        self._node, self._back = None, time.monotonic() + away
        return True

    def kill_head(self) -> None:
        """SIGKILL every process of the head: there is no cluster any more."""
        head: Any = self._cluster.head_node
        head.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)

    def renew(self) -> None:
        """Another cluster, at another address."""
        self.close()
        self._begin()

    def close(self) -> None:
        """End both nodes."""
        self._cluster.shutdown()


@contextlib.contextmanager
def drive(directory: Path, *options: str) -> Generator["subprocess.Popen[str]"]:
    """A driver in a process of its own, killed at the end of the block if it still runs."""
    command = [sys.executable, "-W", "error", str(toy_study.__file__), str(directory), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(directory: Path, *options: str) -> None:
    """Carry the study to its end; Ray may need another start on a machine that is busy."""
    code, output = 1, "Ray did not start"
    while "Ray did not start" in output:
        with drive(directory, *options) as process:
            output, _ = process.communicate(timeout=900)
            code = process.returncode
    assert code == 0, output


def rows(directory: Path) -> Rows:
    """Every trial as its files tell it."""
    found: Rows = []
    for number, trial in StudyDirectory(directory).trials().items():
        proposal, result = trial.proposal(), trial.result()
        assert proposal is not None and result is not None, f"trial {number} never ended"
        found.append((number, proposal["choices"], result.outcome, result.tokens, dict(result.values)))
    return found


def check_whole(directory: Path, trials: int) -> None:
    """Every trial is in a final state that agrees with its file, once, with the value that its point has."""
    storage = JournalStorage(JournalFileBackend(str(directory / "optuna.journal")))
    told = optuna.load_study(study_name=None, storage=storage).trials
    assert all(trial.state.is_finished() for trial in told)
    assert [trial.number for trial in told] == [row[0] for row in rows(directory)]
    for (_, choices, outcome, tokens, values), trial in zip(rows(directory), told, strict=True):
        if outcome.value != "duplicate":
            assert values["loss"] == exact(choices, round(tokens / 1600 * toy_study.STEPS))
        assert trial.user_attrs["outcome"] == outcome.value
        assert outcome.value in ("complete", "stopped", "duplicate"), outcome
        assert outcome.value != "complete" or (trial.values == [values["loss"], values["cost"]] and tokens == 1600)
    decided = [(line["trial"], line["rung"]) for line in records.read_lines(directory / "rungs.jsonl")]
    assert len(set(decided)) == len(decided)
    assert sum(trial.user_attrs["origin"] == "proposal" for trial in told if trial.state.name != "FAIL") == trials


def exact(choices: dict[str, Any], steps: int) -> float:
    """The loss of a point after so many steps."""
    total = 0.0
    for step in range(steps):
        total += toy_study.quality(choices) * (1.1**step)
    return total


def workers(directory: Path) -> list[int]:
    """The living processes that belong to trials of the study."""
    found = [records.read_json(path) or {} for path in directory.glob("trials/*/worker-*.json")]
    return sorted({pid for record in found if _is_worker(pid := int(str(record["pid"])))})


def _is_worker(pid: int) -> bool:
    """Whether the process still is one of Ray's workers: numbers are used again."""
    try:
        return b"ray::_Worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def kill_a_worker(directory: Path, draw: random.Random) -> bool:
    """SIGKILL the process of one trial, if there is one."""
    living = workers(directory)
    if living:
        os.kill(draw.choice(living), signal.SIGKILL)
    return bool(living)


def await_trials(directory: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until the driver has its workers: a new fence, or the end."""
    stamps = {path: path.stat().st_mtime_ns for path in directory.glob("trials/*/attempt.json")}
    while process.poll() is None:
        if any(stamps.get(p) != p.stat().st_mtime_ns for p in directory.glob("trials/*/attempt.json")):
            return
        time.sleep(0.02)


def torment(directory: Path, havoc: Havoc, cluster: LocalCluster, options: list[str]) -> None:
    """Drive the study on the cluster and kill at random until the kills are used up or the study has ended."""
    while havoc.left:
        with drive(directory, *options, "--ray-address", cluster.address) as process:
            await_trials(directory, process)
            while havoc.left and process.poll() is None:  # a driver that could not start is begun again
                time.sleep(havoc.draw.uniform(0.0, havoc.pause))
                cluster.restore()
                target = havoc.target()
                if target == "head":
                    havoc.counts[target] += 1
                    bereave(directory, process, cluster)
                    cluster.renew()
                    break
                done = (
                    target == "driver"
                    or (target == "worker" and kill_a_worker(directory, havoc.draw))
                    or (target == "node" and cluster.kill_node(havoc.draw.uniform(0.0, havoc.pause)))
                )
                havoc.counts[target] += done
                if target == "driver":
                    break
            ended = process.poll()
        if ended == 0:
            return


def bereave(directory: Path, process: "subprocess.Popen[str]", cluster: LocalCluster) -> None:
    """Kill the head of the driver's cluster; the driver must end by itself with a line that says how to go on, unless
    the study has just ended.
    """
    cluster.kill_head()
    output, _ = process.communicate(timeout=120)
    if process.returncode == 0:
        return
    last = (
        f"ClusterLostError: the head of the Ray cluster at {cluster.address} does not answer; nothing is lost: start a "
        f"cluster and go on with archsearch study resume {directory} resources.ray_address=HOST:PORT"
    )
    assert process.returncode == 2 and output.count(last) == 1, output  # Ray may write its own lines around it


def main() -> int:
    """Torment, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--heads", type=int, default=0, help="how many of the kills are of a head")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=float, default=0.6, help="seconds of a step; a trial has 16")
    parser.add_argument("--pause", type=float, default=3.0, help="most seconds between two kills")
    given = parser.parse_args()
    havoc = Havoc(random.Random(given.seed), given.kills, given.pause, given.heads)
    with tempfile.TemporaryDirectory() as home:
        return report(Path(home), havoc, given)


def report(home: Path, havoc: Havoc, given: argparse.Namespace) -> int:
    """The exit code: 0 if nothing was lost and every kill was made."""
    size = ["--trials", str(given.trials), "--slots", str(given.slots)]
    finish(home / "whole", *size, "--pause", "0")
    check_whole(home / "whole", given.trials)
    cluster = LocalCluster()
    start = time.monotonic()
    try:
        torment(home / "study", havoc, cluster, [*size, "--pause", str(given.step), "--patience", "2"])
        seconds = time.monotonic() - start
        cluster.restore()
        finish(home / "study", *size, "--ray-address", cluster.address, "--pause", "0")
        left = still_there(home / "study")
    finally:
        cluster.close()
    check_whole(home / "study", given.trials)
    if given.slots == 1:
        pairs = zip(rows(home / "study"), rows(home / "whole"), strict=True)
        different = next(((killed, whole) for killed, whole in pairs if killed != whole), None)
        assert different is None, f"the killed study differs from the unkilled one: {different}"
    assert not left, f"processes {left} outlived the study"
    kept = [StudyDirectory(home / "study").trial(row[0]) for row in rows(home / "study")]
    attempts = sum(trial.attempt() for trial in kept)
    outcomes = Counter(row[2].value for row in rows(home / "study"))
    print(f"{havoc.counts.total()} kills in {seconds:.0f} s: {dict(havoc.counts)}")
    print(f"{len(kept)} trials of {attempts} attempts ended once each: {dict(outcomes)}")
    print("proposals, outcomes and values are those of the unkilled study" if given.slots == 1 else "values are exact")
    return int(havoc.left)


def still_there(directory: Path) -> list[int]:
    """Worker processes that are left when the driver is gone for some seconds."""
    for _ in range(50):
        if not workers(directory):
            return []
        time.sleep(0.2)
    return workers(directory)


if __name__ == "__main__":
    sys.exit(main())
