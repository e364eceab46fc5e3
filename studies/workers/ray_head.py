"""The head of a Ray cluster: whether it still answers.

Ray itself asks a head that is gone for a minute, and then ends the process that asked without a word to it. So whatever
waits for the head is called here, from a thread that may be left behind.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar, cast

import ray

from archsearch.studies.workers.executor import WorkersLost

T = TypeVar("T")

SECONDS_TO_ANSWER = 5.0
"""For the head of a cluster."""
SECONDS_TO_LEAVE = 10.0
"""A cluster without a head."""
PATIENCE, SECONDS_BETWEEN_TRIES = 10.0, 0.5
"""How long a head may be away, as one that is begun again is."""


class Head:
    """Where the head is, and whether it has been given up."""

    def __init__(self, address: str, *, elsewhere: bool) -> None:
        """address: HOST:PORT. elsewhere: whether somebody else has started it."""
        self.address = address
        self.elsewhere = elsewhere
        self.is_lost = False
        self._asked: list[Future[Any]] = []

    def check(self) -> None:
        """Wait until it answers. WorkersLost if it does not."""
        began = time.monotonic()
        while not answers(self.address):
            if time.monotonic() - began > PATIENCE:
                self.is_lost = True
                what = f"the head of the Ray cluster at {self.address}" if self.elsewhere else "Ray on this machine"
                raise WorkersLost(f"{what} does not answer", elsewhere=self.elsewhere)
            time.sleep(SECONDS_BETWEEN_TRIES)

    def ask(self, call: Callable[[], T]) -> T:
        """What a call gives that may wait for the head. WorkersLost if that is gone before the call has ended."""
        self.check()
        answer = _begun(call)
        self._asked = [cast("Future[Any]", answer)]
        while not wait([answer], SECONDS_BETWEEN_TRIES).done:
            self.check()
        return answer.result()

    def nodes(self) -> list[Mapping[str, float]]:
        """What each living node of the cluster has in all. WorkersLost if the head does not answer."""
        known = self.ask(lambda: cast(list[dict[str, Any]], ray.nodes()))
        return [cast(Mapping[str, float], node["Resources"]) for node in known if node["Alive"]]

    def leave(self) -> None:
        """End what this process has of Ray; of a cluster whose head is gone, as far as that does not wait for it."""
        if self.is_lost:
            wait([_begun(cast(Callable[[], None], ray.shutdown))], SECONDS_TO_LEAVE)
        else:
            wait(self._asked, SECONDS_TO_LEAVE)  # of an interrupted driver; Ray ends a process that asks after its end
            ray.shutdown()


def _begun(call: Callable[[], T]) -> Future[T]:
    """The result to come of a call in a thread of its own, which the end of the process does not wait for."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


def answers(address: str) -> bool:
    """Whether anything listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER):
            return True
    except (OSError, ValueError, OverflowError):
        return False
