"""What the engine itself takes: trials that answer at once, then the finished study taken up again.

    python tests/studies/overhead.py --trials 1000

Prints the driver's milliseconds a trial (proposal, fence, rungs, what Optuna is told; the trials' own writes are left
out), those of the last tenth, when the study is longest, what of it the processor worked and did not wait for the disk
or for other processes, and the seconds that taking the study up again takes. Exit code 1 if a figure is missed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import toy_study

from archsearch.studies.files.directory import Measurement, Result, StudyDirectory, TrialDirectory
from archsearch.studies.files.outcomes import Outcome
from archsearch.studies.workers.clerk import Assignment
from archsearch.studies.workers.executor import Departure

MOST_MILLISECONDS = 50.0
MOST_SECONDS = 10.0
SLOTS = 8


class Instant:
    """Trials that reach their next rung each time they are looked at. `spent` are the seconds of their own
    writes, `worked` those of this process.
    """

    slots = SLOTS

    def __init__(self, rungs: list[int]) -> None:
        """rungs: in tokens, the last one the budget."""
        self.rungs = rungs
        self.spent = self.worked = 0.0
        self.begun: list[tuple[float, float]] = []
        self._live: dict[int, tuple[Assignment, TrialDirectory, int]] = {}

    def start(self, assignment: Assignment) -> None:
        """Nothing is measured yet."""
        self.begun.append((time.perf_counter() - self.spent, time.process_time() - self.worked))
        trial = StudyDirectory(assignment.study).trial(assignment.number)
        self._live[assignment.number] = (assignment, trial, 0)

    def departures(self, timeout: float) -> list[Departure]:
        """Every live trial goes one rung further, or ends."""
        start, worked = time.perf_counter(), time.process_time()
        over = [a for a in [self._advance(*live) for live in self._live.values()] if a is not None]
        for assignment in over:
            del self._live[assignment.number]
        self.spent += time.perf_counter() - start
        self.worked += time.process_time() - worked
        return [Departure(assignment, "") for assignment in over]

    def kill(self, number: int) -> None:
        """Nothing hangs."""

    def close(self) -> None:
        """Nothing is left."""

    def _advance(self, assignment: Assignment, trial: TrialDirectory, rung: int) -> Assignment | None:
        stopped = rung > 0 and bool(trial.decision(self.rungs[rung - 1]))
        if rung == len(self.rungs) or stopped:
            last = trial.curve()[-1]
            outcome = Outcome.STOPPED if stopped else Outcome.COMPLETE
            trial.write_result(Result(outcome, assignment.attempt, last.tokens, last.values, last.seconds))
            return assignment
        loss = toy_study.quality((trial.proposal() or {})["choices"])
        values = {"loss": loss * (1 + assignment.number % 7 / 100), "cost": 1 / loss}
        tokens = self.rungs[rung]
        trial.append_measurement(Measurement(assignment.attempt, tokens, tokens / self.rungs[-1], values, rung + 1.0))
        self._live[assignment.number] = (assignment, trial, rung + 1)
        return None


def measure(directory: Path, trials: int, **changes: Any) -> dict[str, float]:
    """Run a study of `trials` and take it up again; milliseconds and seconds by name."""
    plan = toy_study.plan(**changes)
    workers = Instant(plan.record()["rung_tokens"])
    options: dict[str, Any] = {"trials": trials, "plan": plan, "resolve": toy_study.resolve_finely}
    start, worked = time.perf_counter(), time.process_time()
    toy_study.study(directory, lambda: workers, **options)
    own, worked = time.perf_counter() - start - workers.spent, time.process_time() - worked - workers.worked
    tail = workers.begun[-len(workers.begun) // 10 :]
    last, last_worked = ((end - begin) / (len(tail) - 1) for begin, end in zip(tail[0], tail[-1], strict=True))
    start = time.perf_counter()
    toy_study.study(directory, lambda: workers, **options)
    return {
        "milliseconds a trial": 1000 * own / len(workers.begun),
        "  of them the processor's": 1000 * worked / len(workers.begun),
        "milliseconds a trial, the last tenth": 1000 * last,
        "  of them the processor's, the last tenth": 1000 * last_worked,
        "seconds to resume": time.perf_counter() - start,
    }


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        found = measure(Path(home) / "study", options.trials)
    missed = False
    for name, value in found.items():
        most = MOST_SECONDS if name.startswith("seconds") else MOST_MILLISECONDS
        missed = missed or value > most
        print(f"{name:42} {value:8.2f}   at most {most:g}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
