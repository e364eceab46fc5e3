"""A driver that is told to end ends as if it had been interrupted: its workers go, its files stay, nothing is lost."""

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """SIGTERM raises Terminated in the block; for a main thread, and after Ray has set its own handler, which prints a
    stack.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated
