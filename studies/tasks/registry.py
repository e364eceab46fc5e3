"""The tasks by the names that configurations give them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

from archsearch.errors import TaskError
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.overwrite import OverwriteOptions
from archsearch.studies.tasks.task import Task
from archsearch.studies.tasks.text import TextOptions

LARGEST: Mapping[str, int] = {"length": 1 << 24, "vocabulary": 1 << 24, "evaluation": 1 << 20, "tokens": 10**15}
"""Of the options by these names, whatever task has them: beyond it there is a slip of the pen, and no machine."""


class TaskOptions(Protocol):
    """Options of one task."""

    @property
    def tokens(self) -> int | None:
        """Training tokens; None is the budget's number."""
        ...

    def build(self) -> Task:
        """The task; TaskError if it cannot be built here."""
        ...


@dataclass(frozen=True, slots=True)
class Tasks:
    """One field a task; None is a task left out. `mqar: {}` takes a task with its defaults."""

    mqar: MqarOptions | None = None
    mqar_overwrite: OverwriteOptions | None = None
    text: TextOptions | None = None

    def __post_init__(self) -> None:
        """Refuse a choice of none, and sizes that no machine holds. TaskError."""
        if not self.chosen:
            raise TaskError(f"tasks must name at least one of {', '.join(TASK_NAMES)}; got none; write mqar: {{}}")
        for name, options in self.chosen.items():
            for key, most in LARGEST.items():
                value = getattr(options, key, None)
                if value is not None and value > most:
                    raise TaskError(f"tasks.{name}.{key} must be <= {most:,}; got {value:,}")

    @property
    def chosen(self) -> dict[str, TaskOptions]:
        """The options of the tasks taken, in the order of the fields."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: options for name, options in given.items() if options is not None}

    def build(self) -> dict[str, Task]:
        """The tasks taken, by name."""
        return {name: options.build() for name, options in self.chosen.items()}


TASK_NAMES = tuple(field.name for field in fields(Tasks))
