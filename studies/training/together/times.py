"""Where the seconds of a group of trials went."""

import contextlib
import os
import time
from collections.abc import Generator
from typing import Any


class Times:
    """Where the seconds of a group went, by what it did."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._began = time.time()
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def spent(self, on: str) -> Generator[None]:
        """Count what passes inside."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[on] = self._seconds.get(on, 0.0) + time.perf_counter() - began

    def record(self) -> dict[str, Any]:
        """Plain data: members, process, beginning and end in seconds since 1970, seconds by what was done."""
        ended = time.time()
        return {"members": self._members, "process": os.getpid(), "began": self._began, "ended": ended, **self._seconds}
