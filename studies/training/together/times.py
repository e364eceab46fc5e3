"""Where the seconds of a group of trials went."""

import contextlib
import os
import time
from collections.abc import Generator
from typing import Any

TRAINING = "training"


class Times:
    """Where the seconds of a group went, by what it did."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._began = time.time()
        self._seconds: dict[str, float] = {}
        self._spans: list[tuple[float, float]] = []

    @contextlib.contextmanager
    def spent(self, on: str) -> Generator[None]:
        """Count what passes inside."""
        began, at = time.perf_counter(), time.time()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._seconds[on] = self._seconds.get(on, 0.0) + seconds
            if on == TRAINING:
                self._spans.append((at, at + seconds))

    def seconds(self, on: str) -> float:
        """Spent on something so far."""
        return self._seconds.get(on, 0.0)

    def record(self) -> dict[str, Any]:
        """Plain data: members, process, beginning and end in seconds since 1970, spans of training likewise, seconds by
        what was done."""
        whole = {"began": self._began, "ended": time.time(), "spans": [list(span) for span in self._spans]}
        return {"members": self._members, "process": os.getpid(), **whole, **self._seconds}
