"""The head of a Ray cluster: whether it still answers.

Ray itself asks a head that is gone for a minute, and then ends the process that asked without a word to it: whatever
asks is to ask with a limit, or just after the head has answered.
"""

import socket
import time
from collections.abc import Mapping
from typing import Any, cast

from ray._private import worker
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RpcError

from archsearch.studies.workers.executor import WorkersLost

SECONDS_TO_ANSWER = 5.0
"""For the head of a cluster."""
ALIVE = cast(Any, GcsNodeInfo).ALIVE
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
            self._give_up_after(began)
            time.sleep(SECONDS_BETWEEN_TRIES)

    def nodes(self) -> list[Mapping[str, float]]:
        """What each living node of the cluster has in all. WorkersLost if the head does not answer."""
        began = time.monotonic()
        while True:
            self.check()
            try:
                found = _table()
            except RpcError:
                self._give_up_after(began)
            else:
                return [dict(node.resources_total) for node in found if node.state == ALIVE]

    def _give_up_after(self, began: float) -> None:
        if time.monotonic() - began > PATIENCE:
            self.is_lost = True
            what = f"the head of the Ray cluster at {self.address}" if self.elsewhere else "Ray on this machine"
            raise WorkersLost(f"{what} does not answer", elsewhere=self.elsewhere)


def _table() -> list[Any]:
    """Ray's record of every node. RpcError, which `ray.nodes` does not know, if the head does not answer in time."""
    client = cast(Any, worker).global_worker.gcs_client
    return list(client.get_all_node_info(timeout=SECONDS_TO_ANSWER).values())


def answers(address: str) -> bool:
    """Whether anything listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS_TO_ANSWER):
            return True
    except (OSError, ValueError, OverflowError):
        return False
