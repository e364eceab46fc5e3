"""The engine takes little of a trial's time; `overhead.py` says how much at a thousand trials."""

from pathlib import Path
from types import ModuleType


def test_the_driver_works_few_milliseconds_a_trial_and_resumes_at_once(overhead: ModuleType, tmp_path: Path) -> None:
    found = overhead.measure(tmp_path / "study", 60)
    assert found["  of them the processor's"] < overhead.MOST_MILLISECONDS
    assert found["seconds to resume"] < overhead.MOST_SECONDS
