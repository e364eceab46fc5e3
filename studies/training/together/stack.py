"""Replicas of one model as one batched model: one step of all of them is one pass, one optimiser step, one graph."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap  # pyright: ignore[reportUnknownVariableType, reportPrivateImportUsage]

from archsearch.kernels.rowwise import choice
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.studies.tasks.task import EVALUATION_TOKENS, IGNORED, Task
from archsearch.studies.training.graph import Replay
from archsearch.studies.training.randomness import repeatable
from archsearch.studies.training.run import not_finite, typed_memory_errors
from archsearch.studies.training.together.feed import STEPS, Block, blocks
from archsearch.studies.training.together.folding import Folding
from archsearch.studies.training.together.lane import Lane
from archsearch.studies.training.together.optimiser import RowAdamW, rate_table


@dataclass(frozen=True, slots=True)
class Course:
    """What the steps of a task are: sequences of a batch, steps of the whole budget. half: bfloat16 products. graphs:
    steps are replayed. threads: that draw the data."""

    task: Task
    sequences: int
    steps: int
    half: bool
    graphs: bool
    threads: int = 1


class _Hidden(nn.Module):
    """A language model up to its output layer."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with Folding():
            return self.model.hidden(tokens)


class Stack:
    """R rows, one a lane; rows beyond the lanes repeat the first one and count for nothing.

    All lanes are at the same step. The lanes keep their own rows, which `save` brings up to date.
    """

    def __init__(self, model: LanguageModel, lanes: Sequence[Lane], rows: int, course: Course) -> None:
        """model: folded, on the device that trains; its own parameters are not used."""
        self.rows = rows
        self.layout, self.device = lanes[0].layout, next(model.parameters()).device
        self._model = _Hidden(model)
        self._optimiser = RowAdamW(self.layout.decay_mask(), rows, self.device)
        self._gradients = torch.zeros_like(self._optimiser.weights)
        self._slots = list(self.layout.parts(self._gradients).values())
        self._parameters = {
            name: view.detach().requires_grad_() for name, view in self.layout.parts(self._optimiser.weights).items()
        }
        self._source = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._offsets = torch.arange(rows, device=self.device)[:, None] * (course.sequences * course.task.length)
        self._at = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._rates = torch.zeros(STEPS, rows, device=self.device)
        self._lost = torch.zeros(3, rows, device=self.device)
        """Step from 1, loss and norm at which each row was no longer finite first; step 0: it is finite."""
        self._block: Block | None = None
        self._replay: Replay[None] | None = None
        self._asked = torch.zeros(0, course.task.length, dtype=torch.int64, device=self.device)
        self._reading: Replay[Tensor] | None = None
        self.load(lanes, course)

    def load(self, lanes: Sequence[Lane], course: Course) -> None:
        """Take other lanes of this layout on a course that differs in its steps and threads alone.

        What was compiled and captured stays, since every tensor stays where it is.
        """
        self.lanes, self.course = list(lanes), course
        self.step = lanes[0].step
        spread = [*lanes, *[lanes[0]] * (self.rows - len(lanes))]
        self._trainings = [lane.training for lane in spread]
        self._seeds = list(dict.fromkeys(lane.data_seed for lane in spread))
        self._optimiser.load(self._trainings, [(lane.weights, lane.mean, lane.square) for lane in spread], self.step)
        self._source.copy_(torch.tensor([self._seeds.index(lane.data_seed) for lane in spread]))
        self._lost.zero_()

    def prepare(self) -> None:
        """Compile what a step and an evaluation need; no row changes."""
        length = self.course.task.length
        tokens = torch.zeros(self.rows, self.course.sequences, length, dtype=torch.int64, device=self.device)
        label = torch.zeros(self.rows, 1, dtype=torch.int64, device=self.device)
        with repeatable(self.device), typed_memory_errors():
            losses = self._losses(tokens, label, label)
            torch.autograd.grad(losses.sum(), list(self._parameters.values()), materialize_grads=True)
            if self.course.graphs:
                self.capture_reading()
            else:
                self.logits(torch.zeros(_read_at_once(length), length, dtype=torch.int64))

    def advance(self, last: int) -> None:
        """Train to step `last` of the budget, or until no lane is finite any more; the lanes' faults are set."""
        course = self.course
        with repeatable(self.device), typed_memory_errors():
            for block in blocks(course.task, self._seeds, course.sequences, self.step, last, course.threads):
                self._take(block)
                for _ in range(block.steps):
                    self._move()
                    self.step += 1
                self._note_faults()
                if all(lane.fault for lane in self.lanes):
                    break

    def save(self) -> None:
        """Bring the lanes' own rows up to date."""
        held = self._optimiser
        count = len(self.lanes)
        kept = [x[:count].to("cpu", copy=True) for x in (held.weights, held.mean, held.square)]
        for i, lane in enumerate(self.lanes):
            lane.weights, lane.mean, lane.square = (rows[i] for rows in kept)
            lane.step = self.step

    def close(self) -> None:
        """Let what was captured go, which holds memory and would hold this stack."""
        self._replay = self._reading = None

    def capture_reading(self) -> None:
        """Have the passes of evaluations replayed from now on: captured here, where no other thread uses the device."""
        if self._reading is not None:
            return
        length = self.course.task.length
        self._asked = torch.zeros(_read_at_once(length), length, dtype=torch.int64, device=self.device)
        reading = Replay(lambda: self._hidden(self._asked, shared=True), self.device)
        with torch.no_grad(), repeatable(self.device), typed_memory_errors():
            while not reading.is_captured:
                reading()
        self._reading = reading

    def logits(self, tokens: Tensor) -> Tensor:
        """Tokens [B, T] on the CPU, the same for all -> [R, B, T, vocabulary], in the type of the products."""
        with torch.no_grad(), typed_memory_errors():
            logits = self._headed(self._read(tokens).flatten(1, 2))
        return logits.view(self.rows, *tokens.shape, -1)

    def _read(self, tokens: Tensor) -> Tensor:
        """[R, B, T, width] of tokens [B, T] on the CPU; of a replay what the next one writes anew."""
        if self._reading is None or tokens.shape[1:] != self._asked.shape[1:] or len(tokens) > len(self._asked):
            return self._hidden(tokens.to(self.device, non_blocking=True), shared=True)
        self._asked[: len(tokens)].copy_(tokens, non_blocking=True)
        return self._reading()[:, : len(tokens)]

    def _take(self, block: Block) -> None:
        """Put a block and its learning rates where the steps read them."""
        rates = rate_table(self._trainings, self.step, self.step + block.steps, self.course.steps)
        self._rates[: block.steps].copy_(rates, non_blocking=True)
        self._at.zero_()
        held = self._block
        if held is None or any(len(x) != len(y) or x.shape[2:] != y.shape[2:] for x, y in _pairs(held, block)):
            self._replay = None  # a graph reads the tensors that it was captured with
            self._block = held = _room(block, self.device)
        for kept, given in _pairs(held, block):
            kept[:, : block.steps].copy_(given, non_blocking=True)

    def _move(self) -> None:
        """One step of all rows."""
        if not self.course.graphs:
            self._change()
            return
        if self._replay is None:
            self._replay = Replay(self._change, self.device)
        self._replay()

    def _change(self) -> None:
        """One step at the place that the counter says; on CUDA it waits for nothing."""
        assert self._block is not None
        tokens, places, answers = (
            each.index_select(1, self._at)[:, 0].index_select(0, self._source).long() for each in _tensors(self._block)
        )
        losses = self._losses(tokens, places, answers)
        found = torch.autograd.grad(losses.sum(), list(self._parameters.values()), materialize_grads=True)
        with torch.no_grad():
            torch._foreach_copy_(self._slots, found)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
            rates = self._rates.index_select(0, self._at)[0]
            norms = self._optimiser.step(self._gradients, rates)
            self._at += 1
            self._remember(losses.detach(), norms)

    def _remember(self, losses: Tensor, norms: Tensor) -> None:
        """Note the rows that are no longer finite, each at the first step of that kind."""
        fresh = ~torch.isfinite(losses + norms) & (self._lost[0] == 0)
        seen = torch.stack([self._optimiser.count.expand_as(losses), losses, norms])
        self._lost.copy_(torch.where(fresh, seen, self._lost))

    def _losses(self, tokens: Tensor, places: Tensor, answers: Tensor) -> Tensor:
        """[R]: the mean loss in nats of every replica over its labelled positions."""
        hidden = self._hidden(tokens, shared=False)
        labelled = hidden.flatten(0, 2).index_select(0, (places + self._offsets).flatten())
        logits = self._headed(labelled.view(*places.shape, -1))
        each = _costs(logits.flatten(0, 1), answers.flatten())
        return each.view_as(answers).sum(1) / (answers != IGNORED).sum(1)

    def _hidden(self, tokens: Tensor, *, shared: bool) -> Tensor:
        """[R, B, T, width] of tokens [R, B, T], or of [B, T] that all share."""
        named = {f"model.{name}": parameter for name, parameter in self._parameters.items()}
        mapped = vmap(  # pyright: ignore[reportUnknownVariableType]
            lambda own, given: functional_call(self._model, own, (given,)),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
            in_dims=(0, None if shared else 0),
            randomness="error",
        )
        with self._cast():
            return cast(Tensor, mapped(named, tokens))

    def _headed(self, hidden: Tensor) -> Tensor:
        """Hidden [R, N, width] to logits [R, N, vocabulary]."""
        head = self._parameters.get("head", self._parameters["embedding.weight"])
        with self._cast():
            return torch.bmm(hidden, head.transpose(1, 2))

    def _cast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.course.half)

    def _note_faults(self) -> None:
        """Waits for the device."""
        found = cast(list[list[float]], self._lost.T.tolist())
        for lane, (step, loss, norm) in zip(self.lanes, found, strict=False):
            if step and not lane.fault:
                lane.fault = not_finite(self.course.task, round(step), self.course.steps, loss, norm)


def _read_at_once(length: int) -> int:
    """Sequences of one pass of an evaluation."""
    return max(1, EVALUATION_TOKENS // length)


def _costs(logits: Tensor, answers: Tensor) -> Tensor:
    """[N]: nats of every answer, 0 for `IGNORED`, of logits [N, vocabulary] in the type of the products."""
    if choice.applies(logits):
        from archsearch.kernels.rowwise import calls

        return calls.cross_entropy(logits, answers)
    return F.cross_entropy(logits.float(), answers, ignore_index=IGNORED, reduction="none")


def _tensors(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    return block.tokens, block.places, block.answers


def _pairs(one: Block, other: Block) -> list[tuple[Tensor, Tensor]]:
    return list(zip(_tensors(one), _tensors(other), strict=True))


def _room(block: Block, device: torch.device) -> Block:
    """Tensors on `device` for any block like this one, of up to STEPS steps."""
    sizes = [(x.shape[0], STEPS, *x.shape[2:]) for x in _tensors(block)]
    return Block(*(torch.zeros(size, dtype=torch.int32, device=device) for size in sizes))


def rows_for(lanes: int, most: int) -> int:
    """Rows of a stack of so many lanes: a power of two, so that few widths are compiled, or `most`."""
    return min(most, 2 ** math.ceil(math.log2(lanes)))


COMPILING = 10.0
"""Seconds that the kernels of a width take to compile at least, where they are not in Triton's cache."""


def rows_to_go_on(lanes: int, most: int, compiled: Collection[int], ahead: float | None, compiling: float) -> int:
    """Rows for lanes some of whose fellows may be gone: a width of `compiled`, unless a smaller one saves more.

    ahead: seconds that the rest of the training would take as it was until now; None before it begins. compiling:
    seconds that a width took to compile.
    """
    least = rows_for(lanes, most)
    known = min((rows for rows in compiled if least <= rows <= most), default=least)
    if known == least or ahead is None:
        return known
    return least if ahead * (1 - least / known) > max(compiling, COMPILING) else known
