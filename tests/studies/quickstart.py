"""The quickstart study as a user runs it, held against what it promises.

    python tests/studies/quickstart.py                 # about five minutes on two cores
    python tests/studies/quickstart.py trials=1        # anything that the study takes, to see it at work

Runs `archsearch study run studies/configs/quickstart.yaml` in a folder of its own, watches the memory of its processes,
and prints every promise with what came. Exit code 1 if one does not hold.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archsearch.studies.evidence.rows import Evidence, Row, read_evidence
from archsearch.studies.files.directory import StudyDirectory
from archsearch.studies.files.outcomes import Outcome

ROOT = Path(__file__).parents[2]
CONFIG = "studies/configs/quickstart.yaml"
BASELINES = {"gated_delta_net", "q_delta", "eda"}
LEARNER = "gated_delta_net"
MOST_MINUTES, MOST_GIB = 8.0, 6.0
FEWEST_TRIALS = 10
MOST_CHANCE, LEAST_RECALL = 0.05, 0.5
BIGRAM = "byte n-gram, order 1"
SECONDS_BETWEEN_LOOKS = 2.0


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold, what came, whether it holds."""

    text: str
    came: str
    holds: bool


def promises(evidence: Evidence, seconds: float, memory: int) -> Sequence[Promise]:
    """Of a finished study, the seconds that it took and the most bytes that its processes had at once."""
    ended = [row for row in evidence.rows if row.outcome is not None]
    trained = [row for row in ended if row.outcome in (Outcome.COMPLETE, Outcome.STOPPED)]
    beside = [row for row in trained if not row.is_baseline]
    baselines = {row.name for row in evidence.ended(Outcome.COMPLETE) if row.is_baseline}
    chance = max(value for objective, _, value in evidence.references if objective == "recall")
    (bigram,) = (value for _, name, value in evidence.references if name == BIGRAM)
    learner = next((row for row in trained if row.name == LEARNER), None)
    recall, bits = _value(learner, "recall", 0.0), _value(learner, "bits_per_byte", float("inf"))
    best = _value(evidence.winner, "bits_per_byte", float("inf"))
    gib = memory / 2**30
    return [
        Promise(f"under {MOST_MINUTES:g} minutes", f"{seconds / 60:.1f}", seconds < 60 * MOST_MINUTES),
        Promise(f"under {MOST_GIB:g} GiB", f"{gib:.1f}", gib < MOST_GIB),
        Promise(
            f"at least {FEWEST_TRIALS} trials beside the baselines", f"{len(beside)}", len(beside) >= FEWEST_TRIALS
        ),
        Promise("every trial has an end", f"{len(ended)} of {len(evidence.rows)}", len(ended) == len(evidence.rows)),
        Promise("the baselines in full", ", ".join(sorted(baselines)), baselines == BASELINES),
        Promise(f"chance under {MOST_CHANCE:g}", f"{chance:.3f}", chance < MOST_CHANCE),
        Promise(f"{LEARNER} recalls at least {LEAST_RECALL:g}", f"{recall:.3f}", recall >= LEAST_RECALL),
        Promise(f"{LEARNER} under the bigram's {bigram:.3f} bits", f"{bits:.3f}", bits < bigram),
        Promise(f"the winner under the bigram's {bigram:.3f} bits", f"{best:.3f}", best < bigram),
    ]


def _value(row: Row | None, objective: str, otherwise: float) -> float:
    return otherwise if row is None else row.values.get(objective, otherwise)


def run(directory: Path, overrides: Sequence[str]) -> tuple[int, float, int]:
    """Run the study, its output on this terminal; its exit code, the seconds, the most bytes."""
    command = ["-m", "archsearch", "study", "run", CONFIG, f"directory={directory}", *overrides]
    began, memory = time.monotonic(), 0
    with subprocess.Popen([sys.executable, *command], cwd=ROOT) as process:
        while process.poll() is None:
            memory = max(memory, memory_of(process.pid))
            time.sleep(SECONDS_BETWEEN_LOOKS)
    return process.returncode, time.monotonic() - began, memory


def memory_of(root: int) -> int:
    """Bytes of a process and everything that it started; what several share is counted once."""
    return sum(_shared_out(pid) for pid in _tree(root, _parents()))


def _parents() -> Mapping[int, int]:
    """The parent of every process."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def _tree(root: int, parents: Mapping[int, int]) -> list[int]:
    return [root, *(pid for child, of in parents.items() if of == root for pid in _tree(child, parents))]


def _shared_out(pid: int) -> int:
    """A process' bytes, its part alone of what it shares (PSS); none of one that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def main() -> int:
    """Run, judge, print."""
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home) / "quickstart"
        code, seconds, memory = run(directory, sys.argv[1:])
        if code:
            print(f"BROKEN  the study ends well, its winner's module passes its own test: exit code {code}")
            return 1
        found = promises(read_evidence(StudyDirectory(directory)), seconds, memory)
    for promise in found:
        print(f"{'holds' if promise.holds else 'BROKEN':8}{promise.text:55}{promise.came}")
    return int(not all(promise.holds for promise in found))


if __name__ == "__main__":
    sys.exit(main())
