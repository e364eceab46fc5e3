"""The head of a Ray cluster: whether it still answers.

Ray itself asks a head that is gone for a minute, and then ends the process that asked without a word to it.
"""

import socket
import time

from archsearch.studies.workers.executor import WorkersLost

SECONDS_TO_ANSWER = 5.0
"""For the head of a cluster."""
PATIENCE, SECONDS_BETWEEN_TRIES = 10.0, 0.5
"""How long a head may be away, as one that is begun again is."""


class Head:
    """Where the head is, and whether it has been given up."""

    def __init__(self, address: str, *, elsewhere: bool) -> None:
        """address: HOST:PORT. elsewhere: whether somebody else has started it."""
        self.address = address
        self.elsewhere = elsewhere
        self.is_lost = False

    def check(self) -> None:
        """Wait until it answers. WorkersLost if it does not."""
        began = time.monotonic()
        while not answers(self.address):
            if time.monotonic() - began > PATIENCE:
                self.is_lost = True
                what = f"the head of the Ray cluster at {self.address}" if self.elsewhere else "Ray on this machine"
                raise WorkersLost(f"{what} does not answer", elsewhere=self.elsewhere)
            time.sleep(SECONDS_BETWEEN_TRIES)


def answers(address: str) -> bool:
    """Whether anything listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER):
            return True
    except (OSError, ValueError, OverflowError):
        return False
