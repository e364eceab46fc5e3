"""A function in a process of its own: what it breaks, caches or reads from its environment stays there."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar, cast

from archsearch.errors import described

Result = TypeVar("Result")
LEAVING = 20.0
"""Seconds that a process may take to end once it has answered."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Why there is no result."""

    reason: str


@dataclass(frozen=True, slots=True)
class Running(Generic[Result]):
    """A process under way."""

    process: BaseProcess
    answer: Connection

    def result(self) -> Result | Broken:
        """What the function returned, once it has; or what it raised, or how its process ended."""
        try:
            found = cast("Result | Broken", self.answer.recv())
        except EOFError:
            self.process.join()
            return Broken(f"its process ended with exit code {self.process.exitcode}")
        self.process.join(LEAVING)
        self.process.kill()
        return found


def start(
    function: Callable[..., Result], arguments: tuple[Any, ...], environment: Mapping[str, str] | None = None
) -> Running[Result]:
    """Start `function(*arguments)` in a fresh process; both must pickle. `environment` is set before it is called."""
    context = multiprocessing.get_context("spawn")
    answer, question = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(function, arguments, dict(environment or {}), question), daemon=True)
    process.start()
    question.close()
    return Running(process, answer)


def _serve(
    function: Callable[..., object], arguments: tuple[Any, ...], environment: dict[str, str], answer: Connection
) -> None:
    os.environ.update(environment)
    try:
        answer.send(function(*arguments))
    except Exception as fault:  # the caller is in another process: whatever is raised is its answer
        answer.send(Broken(described(fault)))
