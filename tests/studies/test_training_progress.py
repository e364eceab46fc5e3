"""Progress: the rate is this process's own, and the time left follows from it."""

import io

import torch
from rich.console import Console

from archsearch.studies.training import progress
from archsearch.studies.training.progress import Pace, shown_progress
from archsearch.studies.training.run import Step


def step(number: int, task: str = "text") -> Step:
    return Step(task, number, 100, number * 10, torch.tensor(1.5))


def test_a_resumed_trial_counts_its_rate_from_where_it_began() -> None:
    now = 0.0
    pace = Pace(1000, clock=lambda: now)
    for number in (51, 52, 53, 54):
        now += 2.0
        pace.see(step(number))
    assert pace.tokens == 540 and pace.tokens_per_second == 5.0
    assert pace.words(step(54)) == " 54 %  text step 54/100  loss 1.500  5 tokens/s  1:32 left"


def test_several_tasks_share_one_budget() -> None:
    pace = Pace(2000)
    pace.see(step(100, "mqar"))
    pace.see(step(50, "text"))
    assert pace.tokens == 1500


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    before = progress.SECONDS_BETWEEN_LINES
    progress.SECONDS_BETWEEN_LINES = 0.0
    try:
        with shown_progress(Console(file=out, width=100), 1000) as watch:
            watch(step(1))
    finally:
        progress.SECONDS_BETWEEN_LINES = before
    assert out.getvalue().startswith("  1 %  text step 1/100  loss 1.500") and "\x1b" not in out.getvalue()


def test_a_terminal_has_a_bar_that_goes_away() -> None:
    out = io.StringIO()
    with shown_progress(Console(file=out, force_terminal=True, width=100), 1000) as watch:
        watch(step(1))
    assert "\x1b" in out.getvalue()
