"""Multi-query associative recall: key-value pairs, then queries at power-law distances (arXiv 2312.04927).

The value is the target at the query and does not follow in the sequence. One difference from the published sets: random
filler is drawn from keys that the sequence does not use, so that it can contradict no pair.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from archsearch.errors import TaskError
from archsearch.studies.tasks import pairs as pairs_of
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.task import (
    EVALUATION_TOKENS,
    IGNORED,
    Batch,
    Forward,
    Objective,
    Part,
    Scored,
    Stream,
    generator,
)


@dataclass(frozen=True, slots=True)
class MqarOptions:
    """The sequences and their evaluation.

    length: tokens of a sequence, >= 4 pairs. pairs: one number or several, each scored by an evaluation. train_pairs:
    the
    numbers that a batch mixes evenly; null is pairs; smaller ones beside the largest let recall begin earlier.
    vocabulary: even, half keys, half values. power_a: of the query distances, > 0. random_non_queries: filler is random
    keys, else 0. evaluation: held-out sequences for each number of pairs. tokens: training budget of this task.
    """

    length: int = 256
    pairs: int | tuple[int, ...] = (16, 32, 64)
    vocabulary: int = 8192
    power_a: float = 0.01
    random_non_queries: bool = True
    evaluation: int = 1000
    tokens: int | None = None
    train_pairs: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no sequence can be drawn from. TaskError."""
        for key, numbers in (("pairs", self.slices), ("train_pairs", self.train_slices)):
            if not numbers or min(numbers) < 1:
                raise TaskError(f"tasks.mqar.{key} must be one or more numbers >= 1; got {getattr(self, key)}")
        most = max(*self.slices, *self.train_slices)
        pairs_of.check_length("mqar", self.length, 4 * most, f"{most} pairs and as many queries")
        pairs_of.check_vocabulary("mqar", self.vocabulary, most, most, with_filler=self.random_non_queries)
        pairs_of.check_at_least("mqar", "evaluation", self.evaluation, 1)
        if self.power_a <= 0:
            raise TaskError(f"tasks.mqar.power_a must be > 0; got {self.power_a}")
        pairs_of.check_at_least("mqar", "tokens", self.tokens, 1)

    @property
    def slices(self) -> tuple[int, ...]:
        """The numbers of pairs that an evaluation scores."""
        return (self.pairs,) if isinstance(self.pairs, int) else self.pairs

    @property
    def train_slices(self) -> tuple[int, ...]:
        """The numbers of pairs that a batch mixes."""
        if self.train_pairs is None:
            return self.slices
        return (self.train_pairs,) if isinstance(self.train_pairs, int) else self.train_pairs

    def build(self) -> "Mqar":
        """The task."""
        return Mqar(self)


class Mqar:
    """The task of `MqarOptions`.

    Values: `recall` (mean over the numbers of pairs), `recall_<pairs>` each, `recall_loss` in nats an answer.
    """

    name = "mqar"
    objective = Objective("recall", Direction.MAXIMIZE)

    def __init__(self, options: MqarOptions) -> None:
        """Nothing is drawn yet."""
        self.options = options
        self.vocabulary = options.vocabulary
        self.length = options.length
        trained = "" if options.train_slices == options.slices else f" (trained on {_listed(options.train_slices)})"
        self.description = (
            f"multi-query recall: {_listed(options.slices)} pairs{trained} in {options.length} tokens, vocabulary"
            f" {options.vocabulary}; accuracy at the queries, mean over {options.evaluation} sequences each"
        )
        determined = dataclasses.replace(options, tokens=None)
        self.data_hash = pairs_of.hash_options(self.name, dataclasses.asdict(determined))
        self._held_out: dict[tuple[Part, int], Batch] = {}

    def train_batch(self, seed: int, step: int, sequences: int) -> Batch:
        """Fresh sequences, the numbers of pairs in equal shares; the odd ones out rotate with the step."""
        slices = self.options.train_slices
        counts = [(sequences + (step + i) % len(slices)) // len(slices) for i in range(len(slices))]
        random = generator(Stream.TRAINING, seed, step)
        parts = [self._draw(random, count, n) for count, n in zip(counts, slices, strict=True) if count]
        return Batch(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def held_out(self, part: Part, pairs: int) -> Batch:
        """The fixed sequences of an evaluation; the same for every trial and seed."""
        if (part, pairs) not in self._held_out:
            random = generator(Stream.of(part), pairs)
            self._held_out[part, pairs] = self._draw(random, self.options.evaluation, pairs)
        return self._held_out[part, pairs]

    def evaluate(self, forward: Forward, part: Part = Part.VALIDATION) -> dict[str, float]:
        """Accuracy at the queries, averaged within a sequence, then over sequences."""
        accuracies: dict[str, float] = {}
        losses: list[float] = []
        for n in self.options.slices:
            accuracies[f"recall_{n}"], loss = score(forward, self.held_out(part, n))
            losses.append(loss)
        recall = sum(accuracies.values()) / len(accuracies)
        return {"recall": recall, **accuracies, "recall_loss": sum(losses) / len(losses)}

    def score_documents(self, forward: Forward, part: Part = Part.VALIDATION) -> list[Scored]:
        """The accuracy of every held-out sequence; as many of each number of pairs, so that their mean is `recall`."""
        found: list[Scored] = []
        for n in self.options.slices:
            batch = self.held_out(part, n)
            hits = (predict(forward, batch)[0] == batch.targets).float()
            found += pairs_of.as_documents(str(n), pairs_of.per_sequence(hits, batch.targets != IGNORED))
        return found

    def baselines(self, part: Part = Part.VALIDATION) -> Mapping[str, float]:
        """A uniform guess among all values, and one among the values that the sequence shows."""
        shown = [1 / n for n in self.options.slices]
        return {
            "chance (any value)": 2 / self.vocabulary,
            "chance (a value of the sequence)": sum(shown) / len(shown),
        }

    def _draw(self, random: np.random.Generator, sequences: int, n: int) -> Batch:
        options = self.options
        half = options.vocabulary // 2
        key_deck = pairs_of.draw_distinct(random, sequences, 1, half, n)
        keys = key_deck[:n].T
        values = pairs_of.draw_distinct(random, sequences, half, options.vocabulary, n)[:n].T
        slots = (options.length - 2 * n) // 2
        places = pairs_of.draw_places(random, sequences, n, slots, options.power_a)
        context = pairs_of.interleave(keys, values)
        tokens, targets = pairs_of.lay_out(context, keys, values, places, options.length)
        if options.random_non_queries:
            pairs_of.fill(random, tokens, key_deck[n:])
        return pairs_of.batch_of(tokens, targets)


def predict(forward: Forward, batch: Batch) -> tuple[Tensor, float]:
    """(answers, loss): the likeliest token at every labelled position, -1 elsewhere, [B, T] on the CPU; nats an
    answer."""
    labelled = batch.targets != IGNORED
    chosen: list[Tensor] = []
    losses: list[Tensor] = []
    at_once = max(1, EVALUATION_TOKENS // batch.tokens.shape[1])
    for start in range(0, len(batch.tokens), at_once):
        rows = slice(start, start + at_once)
        places, targets = labelled[rows].flatten().nonzero()[:, 0], batch.targets[rows][labelled[rows]]
        own = _at_places(forward(batch.tokens[rows]), places)
        losses.append(cross_entropy(own, targets.to(own.device, non_blocking=True), reduction="sum"))
        chosen.append(own.argmax(-1))
    answers = torch.full(batch.targets.shape, -1)
    answers[labelled] = torch.cat(chosen).cpu()  # the one wait for a device
    return answers, float(torch.stack(losses).double().sum()) / int(labelled.sum())


def _at_places(logits: Tensor, places: Tensor) -> Tensor:
    """[N, vocabulary] of logits [B, T, vocabulary] at places [N] of the flat batch; nobody holds the rest meanwhile."""
    return logits.flatten(0, 1).index_select(0, places.to(logits.device, non_blocking=True)).float()


def score(forward: Forward, batch: Batch) -> tuple[float, float]:
    """(accuracy, loss in nats an answer) of a model on held-out sequences."""
    answers, loss = predict(forward, batch)
    hits = (answers == batch.targets).float()
    return pairs_of.per_sequence_mean(hits, batch.targets != IGNORED), loss


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
