"""Progress of a training in words and bars: rate and time left, from the steps that a run reports."""

import contextlib
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from archsearch.studies.training.run import Step, Watch

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_DRAWINGS = 0.2


class Pace:
    """How far a trial has come and how fast, since this process began."""

    def __init__(self, total_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        """total_tokens: of all tasks."""
        self.total = total_tokens
        self._clock = clock
        self._start = clock()
        self._tokens: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def see(self, step: Step) -> None:
        """Take note of a step."""
        if step.task not in self._before:
            self._before[step.task] = step.tokens - step.tokens // step.step
        self._tokens[step.task] = step.tokens

    @property
    def tokens(self) -> int:
        """Tokens seen, those of earlier processes too."""
        return min(self.total, sum(self._tokens.values()))

    @property
    def tokens_per_second(self) -> float:
        """Since this process began."""
        return (sum(self._tokens.values()) - sum(self._before.values())) / max(1e-9, self._clock() - self._start)

    def words(self, step: Step) -> str:
        """One line about the step just made."""
        rate = self.tokens_per_second
        left = (self.total - self.tokens) / rate if rate else float("inf")
        return (
            f"{100 * self.tokens / self.total:3.0f} %  {step.task} step {step.step}/{step.steps}"
            f"  loss {float(step.loss):.3f}  {rate:,.0f} tokens/s  {_duration(left)} left"
        )


@contextlib.contextmanager
def shown_progress(console: Console, total_tokens: int) -> Generator[Watch, None, None]:
    """A watch that draws a bar on a terminal, and writes a line every few seconds anywhere else."""
    pace = Pace(total_tokens)
    if not console.is_terminal:
        yield _every(SECONDS_BETWEEN_LINES, pace, lambda step: console.print(pace.words(step), highlight=False))
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total_tokens)

        def draw(step: Step) -> None:
            progress.update(bar, completed=pace.tokens, description=pace.words(step)[5:].strip())

        yield _every(SECONDS_BETWEEN_DRAWINGS, pace, draw)


def _every(seconds: float, pace: Pace, show: Callable[[Step], None]) -> Watch:
    shown = time.monotonic()

    def watch(step: Step) -> None:
        nonlocal shown
        pace.see(step)
        now = time.monotonic()
        if now - shown >= seconds:
            shown = now
            show(step)

    return watch


def _duration(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
