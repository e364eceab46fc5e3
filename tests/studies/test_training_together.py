"""Trials trained as one batched model have the values of trials trained alone, and each keeps its own end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.errors import ConfigError
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules
from archsearch.spaces.options import Budget, Schedule, Training
from archsearch.studies.files.outcomes import Unstable
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.registry import Tasks
from archsearch.studies.tasks.task import IGNORED, Part
from archsearch.studies.tasks.text import TextOptions
from archsearch.studies.training.checkpoint import read_checkpoint
from archsearch.studies.training.config import TrialConfig
from archsearch.studies.training.language import plan_trial
from archsearch.studies.training.together import stack as stacks
from archsearch.studies.training.together.feed import STEPS, blocks
from archsearch.studies.training.together.folding import fold
from archsearch.studies.training.together.group import Member, train_together
from archsearch.studies.training.together.kept import Kept, Key
from archsearch.studies.training.together.lane import Lane
from archsearch.studies.training.together.lockstep import evaluate_in_lockstep
from archsearch.studies.training.together.rows import Layout
from archsearch.studies.training.together.stack import Course, Stack, rows_for, rows_to_go_on
from archsearch.studies.training.trial import Plan, build_entry, train_trial

MQAR = MqarOptions(length=16, pairs=2, train_pairs=(1, 2), vocabulary=16, evaluation=16)
TASKS = Tasks(mqar=MQAR)
BUILT = TASKS.build()
SMALL = Model(width=16, heads=2, layers=1, mlp_ratio=0)


class Watched:
    """Keeps what is recorded, stops or breaks off at a fraction."""

    rung_fractions: Sequence[float] = (0.5, 1.0)

    def __init__(self, stop: float = 2.0, broken: float = 2.0) -> None:
        self.stop, self.broken = stop, broken
        self.values: dict[float, dict[str, float]] = {}

    def check_fence(self) -> None: ...

    def record(self, fraction: float, values: Mapping[str, float], seconds: float) -> None:
        if fraction >= self.broken:
            raise KeyboardInterrupt
        self.values[fraction] = dict(values)

    def goes_on(self, fraction: float) -> bool:
        return fraction < self.stop


def planned(seed: int, rate: float, rule: str = "gated_delta_net", tasks: Tasks = TASKS, **options: Any) -> Plan:
    training = replace(Training(learning_rate=rate, batch_tokens=64, warmup=0.2), **options)
    budget = Budget(tokens=64 * 12)
    config = TrialConfig(rule, tasks, SMALL, None, training, budget, seed=seed, evaluations=2, device="cpu")
    return plan_trial(config, BUILT if tasks is TASKS else None)


def together(
    plans: Sequence[Plan], directory: Path, watched: Sequence[Watched], most: int | None = None
) -> dict[int, Any]:
    ends: dict[int, Any] = {}
    pairs = enumerate(zip(plans, watched, strict=True))
    members = [Member(plan, directory / str(i), each) for i, (plan, each) in pairs]
    train_together(members, ends.__setitem__, most=most)
    return ends


def weights(directory: Path, trial: int) -> dict[str, Tensor]:
    kept = read_checkpoint(directory / str(trial))
    assert kept is not None
    return dict(kept.tensors)


def largest_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a if "random" not in n)


PLANS = (
    planned(0, 1e-3, weight_decay=0.3),
    planned(0, 3e-3, schedule=Schedule.COSINE, clip=0.5),
    planned(1, 1e-3, beta2=0.99, warmup=0.4),
)


def test_three_replicas_have_the_losses_and_weights_of_three_runs(tmp_path: Path) -> None:
    alone = [Watched() for _ in PLANS]
    for i, plan in enumerate(PLANS):
        train_trial(plan, tmp_path / "alone" / str(i), alone[i])
    beside = [Watched() for _ in PLANS]
    ends = together(PLANS, tmp_path / "together", beside)
    assert sorted(ends) == [0, 1, 2]
    for i in range(3):
        assert beside[i].values == {f: pytest.approx(v, rel=1e-4, abs=1e-5) for f, v in alone[i].values.items()}
        own, other = weights(tmp_path / "alone", i), weights(tmp_path / "together", i)
        assert largest_difference(own, other) < 1e-4
        assert all(torch.equal(own[name], other[name]) for name in own if "random" in name)


def test_a_trial_begun_together_goes_on_alone_and_the_other_way_round(tmp_path: Path) -> None:
    train_trial(PLANS[0], tmp_path / "whole" / "0", Watched())
    together(PLANS[:2], tmp_path, [Watched(stop=0.5), Watched(stop=0.5)])
    train_trial(PLANS[0], tmp_path / "0", Watched())
    assert largest_difference(weights(tmp_path, 0), weights(tmp_path / "whole", 0)) < 1e-4
    train_trial(PLANS[0], tmp_path / "other" / "0", Watched(stop=0.5))
    together(PLANS[:2], tmp_path / "other", [Watched(), Watched()])
    assert largest_difference(weights(tmp_path / "other", 0), weights(tmp_path / "whole", 0)) < 1e-4


def test_a_group_that_was_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, pieces = [Watched() for _ in PLANS], [Watched(broken=1.0) for _ in PLANS]
    together(PLANS, tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        together(PLANS, tmp_path / "pieces", pieces)
    again = [Watched() for _ in PLANS]
    together(PLANS, tmp_path / "pieces", again)
    for i in range(3):
        assert {**pieces[i].values, **again[i].values} == whole[i].values
        assert largest_difference(weights(tmp_path / "whole", i), weights(tmp_path / "pieces", i)) == 0


def test_a_replica_that_is_no_longer_finite_ends_alone(tmp_path: Path) -> None:
    wild = planned(1, 1e30, warmup=0.0, clip=0.0)
    watched = [Watched() for _ in range(3)]
    ends = together([PLANS[0], wild, PLANS[2]], tmp_path / "wild", watched)
    assert isinstance(ends[1], Unstable)
    assert "lower training.learning_rate" in str(ends[1]) and "by step" in str(ends[1])
    calm = [Watched() for _ in range(3)]
    together(PLANS, tmp_path / "calm", calm)
    assert watched[0].values == calm[0].values and watched[2].values == calm[2].values
    assert watched[1].values == {}


def test_a_stopped_replica_leaves_and_the_others_end_as_they_would(tmp_path: Path) -> None:
    stopping = [Watched(), Watched(stop=0.5), Watched()]
    ends = together(PLANS, tmp_path / "stopping", stopping)
    assert "gpu" in ends[1] and list(stopping[1].values) == [0.5]
    whole = [Watched() for _ in PLANS]
    together(PLANS, tmp_path / "whole", whole)
    for i in (0, 2):
        assert stopping[i].values[1.0] == pytest.approx(whole[i].values[1.0], rel=1e-4)


def test_more_members_than_rows_train_in_turns(tmp_path: Path) -> None:
    turns, whole = [Watched() for _ in PLANS], [Watched() for _ in PLANS]
    together(PLANS, tmp_path / "turns", turns, most=2)
    together(PLANS, tmp_path / "whole", whole)
    for i in range(3):
        assert turns[i].values == {f: pytest.approx(v, rel=1e-4) for f, v in whole[i].values.items()}


def test_a_group_too_large_for_the_memory_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Stack.advance

    def greedy(stack: Stack, last: int) -> None:
        if stack.rows > 2:
            raise torch.OutOfMemoryError("too large")
        advance(stack, last)

    monkeypatch.setattr(Stack, "advance", greedy)
    watched = [Watched() for _ in PLANS]
    ends = together(PLANS, tmp_path, watched)
    assert all(isinstance(end, dict) for end in ends.values()) and len(ends) == 3
    assert all(list(each.values) == [0.5, 1.0] for each in watched)


def test_memory_that_is_too_small_for_one_is_that_trials_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(stack: Stack, last: int) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr(Stack, "advance", greedy)
    ends = together(PLANS[:2], tmp_path, [Watched(), Watched()])
    assert [type(ends[i]) for i in range(2)] == [MemoryError, MemoryError]


def test_what_cannot_be_batched_is_refused(tmp_path: Path) -> None:
    config = TrialConfig("kda", TASKS, replace(SMALL, pattern=("attention",)), budget=Budget(tokens=64), device="cpu")
    with pytest.raises(ConfigError, match=r"^these trials cannot be trained together: layers of Attention are not"):
        together([plan_trial(config, BUILT)], tmp_path, [Watched()])


def test_finals_have_the_cost_of_every_document(tmp_path: Path) -> None:
    text = TextOptions(length=16, stride=16, max_bytes=20_000, evaluation_bytes=400)
    plans = [replace(planned(seed, 1e-3, tasks=Tasks(text=text)), part=Part.TEST) for seed in range(2)]
    alone = train_trial(plans[1], tmp_path / "alone", Watched())
    ends = together(plans, tmp_path, [Watched(), Watched()])
    for own, other in zip(alone["documents"]["text"], ends[1]["documents"]["text"], strict=True):
        assert own[:2] == other[:2] and other[2] == pytest.approx(own[2], rel=1e-4)


@pytest.mark.parametrize("rule", ["simple_gla", "mamba2", "rwkv7", "kda", "eda", "delta_product", "shifted", "qed"])
def test_a_batched_model_has_the_logits_of_its_replicas(rule: str) -> None:
    models: list[LanguageModel] = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(LanguageModel(rules[rule], replace(SMALL, pattern=("rule", "conv"), layers=2), None, 16))
    layout = Layout.of(models[0])
    rows = [layout.row(dict(model.named_parameters())) for model in models]
    lanes = [Lane.fresh(layout, row, Training(), 0, torch.device("cpu")) for row in rows]
    expected = [model(tokens := torch.arange(12).view(1, 12)).detach() for model in models]
    stack = Stack(fold(models[0]), lanes, 3, Course(BUILT["mqar"], 4, 1, half=False, graphs=False))
    found = stack.logits(tokens)
    for i, row in enumerate((0, 1, 0)):  # the third repeats the first
        torch.testing.assert_close(found[i], expected[row], rtol=1e-4, atol=1e-5)


def lanes_of(plans: Sequence[Plan], layout: Layout) -> list[Lane]:
    rows = [layout.row(dict(build_entry(plan, BUILT["mqar"]).named_parameters())) for plan in plans]
    return [Lane.fresh(layout, row, p.training, p.seed, p.device) for p, row in zip(plans, rows, strict=True)]


@pytest.mark.parametrize("seeds", [(2, 3, 4), (5, 5, 5)])
def test_a_batched_model_that_trained_others_trains_the_next_as_a_new_one_would(seeds: tuple[int, ...]) -> None:
    def stacked(plans: Sequence[Plan], steps: int) -> Stack:
        model = fold(build_entry(plans[0], BUILT["mqar"]))  # pyright: ignore[reportArgumentType]
        return Stack(model, lanes_of(plans, Layout.of(model)), 4, course(steps))

    def course(steps: int) -> Course:
        return Course(BUILT["mqar"], 4, steps, half=False, graphs=False)

    others = [planned(seed, rate, weight_decay=0.2) for seed, rate in zip(seeds, (1e-2, 1e-3, 3e-3), strict=True)]
    used, new = stacked(PLANS, 4), stacked(others, 6)
    used.advance(4)
    used.load(lanes_of(others, used.layout), course(6))
    for stack in (used, new):
        stack.advance(6)
        stack.save()
    for one, other in zip(used.lanes, new.lanes, strict=True):
        assert all(torch.equal(x, other.tensors()[name]) for name, x in one.tensors().items())


def test_the_newest_batched_models_are_kept_each_for_its_like() -> None:
    model = fold(build_entry(PLANS[0], BUILT["mqar"]))  # pyright: ignore[reportArgumentType]
    course = Course(BUILT["mqar"], 4, 6, half=False, graphs=False)
    stack = Stack(model, lanes_of(PLANS, Layout.of(model)), 4, course)
    kept, device = Kept(most=2), torch.device("cpu")
    keys = [Key.of(model, course, rows, device) for rows in (4, 2, 1)]
    for key in keys:
        kept.put(key, stack)
    longer, wider = replace(course, steps=9), replace(course, sequences=8)
    assert kept.take(Key.of(model, wider, 2, device)) is None
    assert kept.take(keys[0]) is None and kept.take(Key.of(model, longer, 2, device)) is stack
    assert kept.take(keys[1]) is None and kept.drop() and not kept.drop()


class Called:
    """A replay that only calls."""

    def __init__(self, change: Callable[[], Tensor], device: torch.device) -> None:
        self.change, self.is_captured = change, False

    def __call__(self) -> Tensor:
        self.is_captured = True
        return self.change()


def test_replayed_passes_of_an_evaluation_take_fewer_sequences_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "Replay", Called)
    monkeypatch.setattr(stacks, "EVALUATION_TOKENS", 16 * 4)
    model = fold(build_entry(PLANS[0], BUILT["mqar"]))  # pyright: ignore[reportArgumentType]
    stack = Stack(model, lanes_of(PLANS, Layout.of(model)), 4, Course(BUILT["mqar"], 4, 6, half=False, graphs=True))
    asked = [torch.randint(16, (count, length)) for count, length in ((4, 16), (3, 16), (5, 16), (4, 8))]
    eager = [stack.logits(tokens) for tokens in asked]
    stack.capture_reading()
    for tokens, expected in zip(asked, eager, strict=True):
        torch.testing.assert_close(stack.logits(tokens), expected)
    stack.close()
    assert torch.equal(stack.logits(asked[0]), eager[0])


def test_blocks_hold_what_the_task_draws() -> None:
    task, seen = BUILT["mqar"], 0
    for block in blocks(task, (5, 6), 4, 3, 3 + STEPS + 2, threads=2):
        for step in range(block.steps):
            for i, seed in enumerate((5, 6)):
                batch = task.train_batch(seed, 3 + seen, 4)
                labelled = block.answers[i, step] != IGNORED
                assert torch.equal(block.tokens[i, step].long(), batch.tokens)
                target = torch.full_like(batch.targets, IGNORED).flatten()
                target[block.places[i, step][labelled].long()] = block.answers[i, step][labelled].long()
                assert torch.equal(target.view_as(batch.targets), batch.targets)
            seen += 1
    assert seen == STEPS + 2


def test_evaluations_in_lockstep_share_passes_and_keep_their_errors() -> None:
    passes: list[Tensor] = []

    def forward(tokens: Tensor) -> Tensor:
        passes.append(tokens)
        return torch.stack([tokens + 0.0, tokens + 10.0])

    def evaluate(ask: Any) -> float:
        total = sum(float(ask(torch.full((1, 1), each))) for each in (1, 2))
        if total > 20:
            raise ValueError("too much")
        return total

    found = evaluate_in_lockstep(evaluate, forward, 2)
    assert found[0] == 3.0 and isinstance(found[1], ValueError)
    assert len(passes) == 2


def test_few_widths_are_compiled() -> None:
    assert [rows_for(lanes, 6) for lanes in range(1, 7)] == [1, 2, 4, 4, 6, 6]


@pytest.mark.parametrize(
    ("lanes", "compiled", "ahead", "rows"),
    [
        (2, {8}, 1000.0, 2),  # worth another width
        (2, {8}, 12.0, 8),  # not worth it
        (2, {2, 8}, 12.0, 2),
        (2, {8}, None, 8),  # nothing is known yet
        (5, {4}, 12.0, 8),  # too narrow
        (2, {16}, 12.0, 2),  # wider than memory allows
        (3, set[int](), 12.0, 4),
    ],
)
def test_trials_whose_fellows_are_gone_go_on_in_a_width_that_is_compiled(
    lanes: int, compiled: set[int], ahead: float | None, rows: int
) -> None:
    assert rows_to_go_on(lanes, 8, compiled, ahead, compiling=20.0) == rows
