"""Recall after updates: some keys get new values before every key is asked for; the last value counts.

First every key with its value, then the updates in random order, then the queries as in `mqar`. All values of a
sequence are different, so that an answer says which value of the key it is.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archsearch.errors import TaskError
from archsearch.studies.tasks import pairs as pairs_of
from archsearch.studies.tasks.direction import Direction
from archsearch.studies.tasks.mqar import predict
from archsearch.studies.tasks.task import IGNORED, Batch, Forward, Objective, Part, Scored, Stream, generator


@dataclass(frozen=True, slots=True)
class OverwriteOptions:
    """The sequences and their evaluation.

    length: tokens of a sequence, >= 4 pairs + 2 updates. pairs: number of keys. updated: share of the keys that are
    re-assigned, in (0, 1]. times: how often each of them. vocabulary, power_a, random_non_queries, tokens: as in
    `mqar`. evaluation: held-out sequences.
    """

    length: int = 256
    pairs: int = 16
    updated: float = 0.5
    times: int = 1
    vocabulary: int = 8192
    power_a: float = 0.01
    random_non_queries: bool = True
    evaluation: int = 1000
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no sequence can be drawn from. TaskError."""
        for key in ("pairs", "times", "evaluation", "tokens"):
            pairs_of.check_at_least("mqar_overwrite", key, getattr(self, key), 1)
        if not 0 < self.updated <= 1:
            raise TaskError(f"tasks.mqar_overwrite.updated must be in (0, 1]; got {self.updated}")
        if self.power_a <= 0:
            raise TaskError(f"tasks.mqar_overwrite.power_a must be > 0; got {self.power_a}")
        why = f"{self.pairs} pairs, {self.updates} updates and {self.pairs} queries"
        pairs_of.check_length("mqar_overwrite", self.length, 4 * self.pairs + 2 * self.updates, why)
        values = self.pairs + self.updates
        pairs_of.check_vocabulary(
            "mqar_overwrite", self.vocabulary, self.pairs, values, with_filler=self.random_non_queries
        )

    @property
    def updated_keys(self) -> int:
        """How many keys are re-assigned: the share, rounded, at least one."""
        return max(1, round(self.updated * self.pairs))

    @property
    def updates(self) -> int:
        """How many re-assignments a sequence has."""
        return self.updated_keys * self.times

    def build(self) -> "Overwrite":
        """The task."""
        return Overwrite(self)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A batch and what its answers are compared with.

    updated: [B, T] bool, queries of re-assigned keys. older: [B, T, times], the values such a key had before, else -1.
    """

    batch: Batch
    updated: Tensor
    older: Tensor


class Overwrite:
    """The task of `OverwriteOptions`.

    Values: `overwrite` (accuracy over all queries), `overwrite_updated` and `overwrite_untouched` (accuracy on
    re-assigned and on other keys; the latter absent when every key is re-assigned), `overwrite_stale` (share of the
    queries of re-assigned keys that are answered with an older value of the key).
    """

    name = "mqar_overwrite"
    objective = Objective("overwrite", Direction.MAXIMIZE)

    def __init__(self, options: OverwriteOptions) -> None:
        """Nothing is drawn yet."""
        self.options = options
        self.vocabulary = options.vocabulary
        self.length = options.length
        self.description = (
            f"recall after updates: {options.pairs} keys, {options.updated_keys} of them re-assigned "
            f"{'once' if options.times == 1 else f'{options.times} times'}, in {options.length} tokens, vocabulary "
            f"{options.vocabulary}; {options.evaluation} sequences"
        )
        determined = dataclasses.replace(options, tokens=None)
        self.data_hash = pairs_of.hash_options(self.name, dataclasses.asdict(determined))
        self._held_out: dict[Part, HeldOut] = {}

    def train_batch(self, seed: int, step: int, sequences: int) -> Batch:
        """Fresh sequences."""
        return self._draw(generator(Stream.TRAINING, seed, step), sequences).batch

    def held_out(self, part: Part) -> HeldOut:
        """The fixed sequences of an evaluation; the same for every trial and seed."""
        if part not in self._held_out:
            self._held_out[part] = self._draw(generator(Stream.of(part)), self.options.evaluation)
        return self._held_out[part]

    def evaluate(self, forward: Forward, part: Part = Part.VALIDATION) -> dict[str, float]:
        """Accuracies averaged within a sequence, then over sequences."""
        held_out = self.held_out(part)
        labelled = held_out.batch.targets != IGNORED
        answers, loss = predict(forward, held_out.batch)
        hits = (answers == held_out.batch.targets).float()
        stale = (answers[..., None] == held_out.older).any(-1).float()
        untouched = labelled & ~held_out.updated
        mean = pairs_of.per_sequence_mean
        values = {"overwrite": mean(hits, labelled), "overwrite_updated": mean(hits, held_out.updated)}
        if bool(untouched.any()):
            values["overwrite_untouched"] = mean(hits, untouched)
        return {**values, "overwrite_stale": mean(stale, held_out.updated), "overwrite_loss": loss}

    def score_documents(self, forward: Forward, part: Part = Part.VALIDATION) -> list[Scored]:
        """The accuracy of every held-out sequence over all its queries."""
        batch = self.held_out(part).batch
        hits = (predict(forward, batch)[0] == batch.targets).float()
        return pairs_of.as_documents(str(self.options.pairs), pairs_of.per_sequence(hits, batch.targets != IGNORED))

    def baselines(self, part: Part = Part.VALIDATION) -> Mapping[str, float]:
        """Uniform guesses, and a memory that keeps the first value of each key."""
        options = self.options
        return {
            "chance (any value)": 2 / options.vocabulary,
            "chance (a value of the sequence)": 1 / (options.pairs + options.updates),
            "first value of each key": 1 - options.updated_keys / options.pairs,
        }

    def _draw(self, random: np.random.Generator, sequences: int) -> HeldOut:
        options = self.options
        half, n = options.vocabulary // 2, options.pairs
        key_deck = pairs_of.draw_distinct(random, sequences, 1, half, n)
        drawn = pairs_of.draw_distinct(random, sequences, half, options.vocabulary, n + options.updates)
        keys, values = key_deck[:n].T, drawn[: n + options.updates].T
        updates = self._draw_updates(random, values)
        context_keys = np.concatenate((keys, np.take_along_axis(keys, updates.order, axis=1)), axis=1)
        slots = (options.length - 2 * values.shape[1]) // 2
        places = pairs_of.draw_places(random, sequences, n, slots, options.power_a)
        answers = values[:, :n].copy()
        np.put_along_axis(answers, updates.chosen, updates.history[:, :, -1], axis=1)
        context = pairs_of.interleave(context_keys, values)
        tokens, targets = pairs_of.lay_out(context, keys, answers, places, options.length)
        if options.random_non_queries:
            pairs_of.fill(random, tokens, key_deck[n:])
        at = context.shape[1] + 2 * np.take_along_axis(places, updates.chosen, axis=1)
        older = np.full((sequences, options.length, options.times), -1, dtype=np.int64)
        older[np.arange(sequences)[:, None], at] = updates.history[:, :, :-1]
        batch = pairs_of.batch_of(tokens, targets)
        return HeldOut(batch, torch.as_tensor(older[:, :, 0] >= 0), torch.as_tensor(older))

    def _draw_updates(self, random: np.random.Generator, values: pairs_of.Tokens) -> "_Updates":
        """values: [B, pairs + updates], as the context holds them."""
        sequences, n = len(values), self.options.pairs
        m, times = self.options.updated_keys, self.options.times
        chosen = random.permuted(np.tile(np.arange(n), (sequences, 1)), axis=1)[:, :m]
        events = random.permuted(np.tile(np.repeat(np.arange(m), times), (sequences, 1)), axis=1)
        in_time = np.argsort(events, axis=1, kind="stable")
        later = np.take_along_axis(values[:, n:], in_time, axis=1).reshape(sequences, m, times)
        first = np.take_along_axis(values, chosen, axis=1)[:, :, None]
        order = np.take_along_axis(chosen, events, axis=1)
        return _Updates(chosen, order, np.concatenate((first, later), axis=2))


@dataclass(frozen=True, slots=True)
class _Updates:
    """chosen: [B, M], the keys that change, by number. order: [B, updates], the key of each update. history: [B, M, 1 +
    times], the values of each such key in time; the last one counts.
    """

    chosen: pairs_of.Tokens
    order: pairs_of.Tokens
    history: pairs_of.Tokens
