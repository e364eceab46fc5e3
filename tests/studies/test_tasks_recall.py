"""Recall and recall after updates: a solver that reads the tokens alone is always right; sequences are as promised."""

from typing import cast

import pytest
import torch
from torch import Tensor

from archsearch.errors import TaskError
from archsearch.studies.tasks.mqar import MqarOptions
from archsearch.studies.tasks.overwrite import OverwriteOptions
from archsearch.studies.tasks.task import IGNORED, Documented, Forward, Part, Task

MQAR = [
    MqarOptions(length=64, pairs=(4, 8, 16), vocabulary=64, evaluation=50),
    MqarOptions(length=64, pairs=16, vocabulary=64, random_non_queries=False, evaluation=50),
    MqarOptions(length=33, pairs=(1, 8), vocabulary=20, power_a=1.0, evaluation=50),
]
OVERWRITE = [
    OverwriteOptions(length=64, pairs=8, updated=0.5, times=2, vocabulary=64, evaluation=50),
    OverwriteOptions(length=49, pairs=6, updated=1.0, times=2, vocabulary=64, evaluation=50),
    OverwriteOptions(length=64, pairs=10, updated=0.25, vocabulary=64, random_non_queries=False, evaluation=50),
]
TASKS: list[Task] = [options.build() for options in (*MQAR, *OVERWRITE)]


def rows(tensor: Tensor) -> list[list[int]]:
    return cast("list[list[int]]", tensor.tolist())  # pyright: ignore[reportUnknownMemberType]


def memory(sequence: list[int], half: int, *, first: bool = False) -> list[int]:
    """What a perfect memory answers at each position: the last (or first) value that followed the token so far."""
    seen: dict[int, int] = {}
    answers: list[int] = []
    for position, token in enumerate(sequence):
        previous = sequence[position - 1] if position else 0
        if token >= half and 0 < previous < half and not (first and previous in seen):
            seen[previous] = token
        answers.append(seen.get(token, 0))
    return answers


def solver(task: Task, *, first: bool = False) -> Forward:
    def forward(tokens: Tensor) -> Tensor:
        answers = [memory(row, task.vocabulary // 2, first=first) for row in rows(tokens)]
        return torch.nn.functional.one_hot(torch.tensor(answers), task.vocabulary).float() * 50

    return forward


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.description)
def test_a_solver_that_reads_the_tokens_is_always_right(task: Task) -> None:
    for part in Part:
        values = task.evaluate(solver(task), part)
        for name, value in values.items():
            expected = 0.0 if name.endswith(("stale", "loss")) else 1.0
            assert value == pytest.approx(expected, abs=1e-6), name


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.description)
def test_a_batch_depends_on_seed_and_step_alone(task: Task) -> None:
    first, again = task.train_batch(3, 7, 6), task.train_batch(3, 7, 6)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.targets, again.targets)
    for seed, step in ((3, 8), (4, 7)):
        assert not torch.equal(first.tokens, task.train_batch(seed, step, 6).tokens)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.description)
def test_batches_have_the_promised_shape_and_range(task: Task) -> None:
    for sequences in (1, 5, 6):
        batch = task.train_batch(0, 1, sequences)
        assert batch.tokens.shape == batch.targets.shape == (sequences, task.length)
        assert batch.tokens.dtype == batch.targets.dtype == torch.int64
        assert int(batch.tokens.min()) >= 0 and int(batch.tokens.max()) < task.vocabulary


@pytest.mark.parametrize("options", MQAR, ids=str)
def test_keys_are_unique_and_every_key_is_asked_once(options: MqarOptions) -> None:
    task = options.build()
    for n in options.slices:
        batch = task.held_out(Part.VALIDATION, n)
        keys, values = batch.tokens[:, : 2 * n : 2], batch.tokens[:, 1 : 2 * n : 2]
        assert all(len(set(row)) == n for row in rows(keys))
        half = options.vocabulary // 2
        assert bool((keys >= 1).all() and (keys < half).all() and (values >= half).all())
        asked = batch.targets != IGNORED
        assert not bool(asked[:, : 2 * n].any())
        for row in range(len(keys)):
            assert batch.tokens[row][asked[row]].sort()[0].equal(keys[row].sort()[0])


@pytest.mark.parametrize("options", MQAR, ids=str)
def test_filler_contradicts_no_pair(options: MqarOptions) -> None:
    half = options.vocabulary // 2
    for n in options.slices:
        tokens = options.build().held_out(Part.VALIDATION, n).tokens[:, 2 * n :]
        assert bool((tokens < half).all()), "a value after the pairs would read as a new pair"


def test_every_number_of_pairs_has_its_share_of_a_batch() -> None:
    task = MQAR[0].build()
    for step in range(3):
        (labels,) = rows((task.train_batch(0, step, 7).targets != IGNORED).sum(1)[None])
        assert sorted(labels.count(n) for n in (4, 8, 16)) == [2, 2, 3]


def test_training_may_mix_other_numbers_of_pairs_than_an_evaluation_scores() -> None:
    task = MqarOptions(length=64, pairs=16, vocabulary=64, evaluation=10, train_pairs=(2, 8)).build()
    (labels,) = rows((task.train_batch(0, 0, 6).targets != IGNORED).sum(1)[None])
    assert sorted(labels) == [2, 2, 2, 8, 8, 8]
    assert set(task.evaluate(solver(task))) == {"recall", "recall_16", "recall_loss"}
    assert task.description.startswith("multi-query recall: 16 pairs (trained on 2, 8) in 64 tokens, vocabulary 64;")


def test_training_never_meets_the_held_out_sequences() -> None:
    task = MqarOptions(length=16, pairs=4, vocabulary=20, evaluation=100).build()
    held_out = {part: {tuple(row) for row in rows(task.held_out(part, 4).tokens)} for part in Part}
    trained = {tuple(row) for step in range(20) for row in rows(task.train_batch(0, step, 50).tokens)}
    assert not trained & held_out[Part.VALIDATION] and not held_out[Part.TEST] & held_out[Part.VALIDATION]


def test_query_distances_follow_the_power_law() -> None:
    near, flat = (
        (MqarOptions(length=64, pairs=1, vocabulary=64, power_a=a, evaluation=4000).build()) for a in (0.01, 1.0)
    )
    positions = [t.held_out(Part.TEST, 1).targets.ne(IGNORED).float().argmax(1) for t in (near, flat)]
    weights = torch.arange(1, 32, dtype=torch.float64) ** -0.99
    assert (positions[0] == 2).double().mean() == pytest.approx(float(weights[0] / weights.sum()), abs=0.03)
    assert (positions[1] == 2).double().mean() == pytest.approx(1 / 31, abs=0.015)


@pytest.mark.parametrize("options", OVERWRITE, ids=str)
def test_a_memory_of_first_values_is_stale_on_updated_keys_only(options: OverwriteOptions) -> None:
    task = options.build()
    values = task.evaluate(solver(task, first=True))
    assert values["overwrite_stale"] == 1 and values["overwrite_updated"] == 0
    assert values.get("overwrite_untouched", 1) == 1
    assert values["overwrite"] == pytest.approx(task.baselines()["first value of each key"])


@pytest.mark.parametrize("options", OVERWRITE, ids=str)
def test_as_many_keys_are_updated_as_asked(options: OverwriteOptions) -> None:
    held_out = options.build().held_out(Part.VALIDATION)
    assert bool((held_out.updated.sum(1) == options.updated_keys).all())
    n = options.pairs
    for row in rows(held_out.batch.tokens[:, 2 * n : 2 * (n + options.updates) : 2]):
        assert sorted(row.count(key) for key in set(row)) == [options.times] * options.updated_keys


def test_chance_is_reported() -> None:
    assert MQAR[0].build().baselines() == {
        "chance (any value)": 1 / 32,
        "chance (a value of the sequence)": pytest.approx((1 / 4 + 1 / 8 + 1 / 16) / 3),
    }


def test_the_hash_follows_the_data_and_not_the_budget() -> None:
    one, other, longer = (
        MqarOptions(length=64, pairs=4, vocabulary=64, tokens=tokens, evaluation=count).build().data_hash
        for tokens, count in ((None, 10), (100, 10), (None, 11))
    )
    assert one == other != longer


REFUSED = {
    "tasks.mqar.length must be >= 32 for 8 pairs and as many queries; got 31": lambda: MqarOptions(31, 8, 64),
    "tasks.mqar.pairs must be one or more numbers >= 1; got (4, 0)": lambda: MqarOptions(64, (4, 0), 64),
    "tasks.mqar.train_pairs must be one or more numbers >= 1; got ()": lambda: MqarOptions(64, 4, 64, train_pairs=()),
    "tasks.mqar.power_a must be > 0; got 0": lambda: MqarOptions(64, 4, 64, power_a=0),
    "tasks.mqar.evaluation must be >= 1; got 0": lambda: MqarOptions(64, 4, 64, evaluation=0),
    "tasks.mqar.vocabulary must be even and >= 20 for 8 different keys and 8 different values a sequence, one of them"
    " as filler; got 18": lambda: MqarOptions(64, 8, 18),
    "tasks.mqar_overwrite.updated must be in (0, 1]; got 0": lambda: OverwriteOptions(64, 4, updated=0),
    "tasks.mqar_overwrite.times must be >= 1; got 0": lambda: OverwriteOptions(64, 4, times=0),
    "tasks.mqar_overwrite.tokens must be >= 1; got 0": lambda: OverwriteOptions(64, 4, tokens=0),
    "tasks.mqar_overwrite.length must be >= 40 for 8 pairs, 4 updates and 8 queries; got 39": lambda: OverwriteOptions(
        39, 8
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_options_without_a_sequence_are_refused(message: str) -> None:
    with pytest.raises(TaskError) as caught:
        REFUSED[message]()
    assert str(caught.value) == message


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.description)
def test_each_held_out_sequence_is_a_document_of_the_objective(task: Task) -> None:
    assert isinstance(task, Documented)

    def half_right(tokens: Tensor) -> Tensor:
        return solver(task)(tokens) * (tokens[..., None] % 3 != 0)

    sequences = getattr(task, "options").evaluation * len(getattr(getattr(task, "options"), "slices", [0]))  # noqa: B009
    for part in Part:
        scored = task.score_documents(half_right, part)
        value = task.evaluate(half_right, part)[task.objective.name]
        assert sum(d.bits for d in scored) / sum(d.size for d in scored) == pytest.approx(value, abs=1e-6)
        assert 0 < value < 1 and len({d.bits for d in scored}) > 1
        assert len({d.name for d in scored}) == len(scored) == sequences
