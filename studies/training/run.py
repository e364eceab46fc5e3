"""One model on one task: it advances by tokens, is evaluated, and its whole state can be kept."""

import contextlib
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from archsearch.errors import CheckpointError, ConfigError
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.spaces.options import Precision, Training
from archsearch.studies.files.outcomes import Unstable
from archsearch.studies.tasks.task import EVALUATION_TOKENS, IGNORED, Batch, Documented, Part, Scored, Task
from archsearch.studies.training.graph import Replayed, StepFunction, check_graphs
from archsearch.studies.training.labels import labelled, rounded
from archsearch.studies.training.optimiser import build_optimiser, set_learning_rate
from archsearch.studies.training.randomness import Randomness, derive_seed, repeatable
from archsearch.studies.training.schedule import learning_rate

INITIALISATION, DATA, DROPOUT = range(3)
"""What a trial's seed is for."""

CHECK_EVERY_ON_CUDA = 16
"""Steps between looks at the loss on a GPU, each of which waits for the GPU; on the CPU every step is looked at."""

AHEAD = 4
"""Batches that are drawn or being drawn while a GPU trains."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step just made: its number from 1, of `steps`, the tokens seen so far, and the loss in nats [] of its batch."""

    task: str
    step: int
    steps: int
    tokens: int
    loss: Tensor


Watch = Callable[[Step], None]


def steps_of(task: Task, training: Training, tokens: int) -> tuple[int, int]:
    """(sequences of a step, steps of a budget of `tokens`), rounded up to whole steps."""
    sequences = max(1, training.batch_tokens // task.length)
    return sequences, math.ceil(tokens / (sequences * task.length))


def half_precision(training: Training, device: torch.device) -> bool:
    """Whether products are taken in bfloat16. ConfigError for a precision that `device` does not have."""
    if training.precision is Precision.BFLOAT16 and device.type != "cuda":
        raise ConfigError(f"training.precision bfloat16 needs a CUDA device; got {device}; use auto or float32")
    return device.type == "cuda" and training.precision is not Precision.FLOAT32


class Run:
    """A model, its task, its optimiser and the step they are at.

    The loader's position is the step, the learning rate a function of it, and the random state the run's own, so that
    the tensors and the step are the whole state; equal steps give equal bits, so that a run that was interrupted ends
    as if it had not been.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        training: Training,
        tokens: int,
        seed: int,
        device: torch.device,
        *,
        graphs: bool = False,
    ) -> None:
        """`tokens` are rounded up to whole steps. graphs: steps are replayed as a CUDA graph, with the same bits.

        ConfigError for a precision or graphs that `device` does not have.
        """
        check_graphs(device, graphs=graphs)
        half = half_precision(training, device)
        self.task = task
        self.training = training
        self.device = device
        self.model = self._placed(model)
        self.sequences, self.steps = steps_of(task, training, tokens)
        self.step = 0
        self.optimiser = build_optimiser(self.model, training)
        self.randomness = Randomness(derive_seed(seed, DROPOUT), device)
        self._data_seed = derive_seed(seed, DATA)
        self._half = half
        self._graphs = graphs
        self._change = self._new_change()
        self._labels = 0
        self._prepared: tuple[Batch, tuple[Tensor, Tensor, Tensor]] | None = None

    @property
    def tokens(self) -> int:
        """Tokens trained on so far."""
        return self.step * self.sequences * self.task.length

    @property
    def fraction(self) -> float:
        """The share of the steps that is done, in [0, 1]."""
        return self.step / self.steps

    def advance(self, fraction: float, watch: Watch | None = None) -> None:
        """Train until `fraction` of the steps is done; `watch` sees every step. Unstable if loss or gradient is not
        finite."""
        self.model.train()
        doubts = torch.zeros((), dtype=torch.bool, device=self.device)
        with self.randomness.used(), repeatable(self.device), typed_memory_errors():
            for batch in self._batches(round(fraction * self.steps)):
                loss, norm = self._train_step(batch)
                self.step += 1
                doubts |= ~torch.isfinite(loss + norm)
                if self._is_time_to_look(fraction) and bool(doubts):
                    raise Unstable(not_finite(self.task, self.step, self.steps, float(loss), float(norm)))
                if watch is not None:
                    watch(Step(self.task.name, self.step, self.steps, self.tokens, loss))

    def prepare(self) -> None:
        """Compile what steps and evaluations need; nothing changes."""
        if self.device.type != "cuda":
            return
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        zeros = torch.zeros(self.sequences, self.task.length, dtype=torch.int64, device=self.device)
        places = torch.zeros(rounded(1), dtype=torch.int64, device=self.device)
        few = zeros[:1].expand(max(1, EVALUATION_TOKENS // self.task.length), -1)
        self.model.train()
        with torch.random.fork_rng([self.device]), repeatable(self.device), typed_memory_errors():
            torch.autograd.grad(self._loss(zeros, places, places), trained, allow_unused=True)
            with torch.no_grad():
                self._forward(few)
            torch.cuda.synchronize(self.device)

    def evaluate(self, part: Part = Part.VALIDATION) -> dict[str, float]:
        """The task's values of the model as it is now."""
        self.model.eval()
        with torch.no_grad(), repeatable(self.device), typed_memory_errors():
            values = self.task.evaluate(self._forward, part)
        self.model.train()
        return values

    def score_documents(self, part: Part) -> list[Scored]:
        """What every document of a task that has documents says; of others nothing."""
        if not isinstance(self.task, Documented):
            return []
        self.model.eval()
        with torch.no_grad(), repeatable(self.device), typed_memory_errors():
            scored = self.task.score_documents(self._forward, part)
        self.model.train()
        return scored

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers, optimiser moments and random states, by path; on the CPU, not shared with the run."""
        return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self._named().items()}

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take over what `tensors` returned at `step`. CheckpointError, naming the tensor, if it is of another run."""
        for name, tensor in self._weights().items():
            kept = _found(tensors, f"model/{name}", tensor.shape)
            with torch.no_grad():
                tensor.copy_(self._put(kept, tensor))
        for name, parameter in self.model.named_parameters():
            if f"optimiser/{name}/step" in tensors:
                self.optimiser.state[parameter] = self._moments(tensors, name, parameter)
        states = {name: _found(tensors, f"random/{name}", None) for name in self.randomness.states}
        self.randomness.states = states
        self.step = step
        self._change = self._new_change()  # a graph would go on with the tensors of before

    def _moments(self, tensors: Mapping[str, Tensor], name: str, parameter: Tensor) -> dict[str, Tensor]:
        count = _found(tensors, f"optimiser/{name}/step", None).to(self.device)
        kinds = ("exp_avg", "exp_avg_sq")
        kept = {kind: _found(tensors, f"optimiser/{name}/{kind}", parameter.shape) for kind in kinds}
        return {"step": count, **{kind: self._put(moment, parameter) for kind, moment in kept.items()}}

    def _placed(self, model: nn.Module) -> nn.Module:
        """A model where it is trained."""
        return model.to(self.device)

    def _put(self, whole: Tensor, place: Tensor) -> Tensor:
        """What this process keeps of `whole` where it keeps `place`."""
        return whole.to(place)

    def _named(self) -> dict[str, Tensor]:
        """The tensors that are kept, by path, as they are."""
        named = {f"model/{name}": tensor for name, tensor in self._weights().items()}
        for name, parameter in self.model.named_parameters():
            moments = cast(Mapping[str, Tensor], self.optimiser.state.get(parameter, {}))
            named |= {f"optimiser/{name}/{kind}": moment for kind, moment in moments.items()}
        return named | {f"random/{name}": state for name, state in self.randomness.states.items()}

    def _weights(self) -> dict[str, Tensor]:
        """Every parameter once, under its first name, and the buffers that a state dict keeps."""
        parameters = dict(self.model.named_parameters())
        known = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        state = cast(Mapping[str, Tensor], self.model.state_dict(keep_vars=True))
        return parameters | {name: tensor for name, tensor in state.items() if name not in known}

    def _train_step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(loss, gradient norm before clipping) of one optimiser step."""
        set_learning_rate(self.optimiser, learning_rate(self.training, self.step, self.steps))
        return self._change(*self._labelled(batch))

    def _labelled(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, places and answers; a batch with more labels than any before it is a new kind of step."""
        if self._prepared is None or self._prepared[0] is not batch:
            places, answers = labelled(batch.targets, self._labels)
            self._prepared = batch, (batch.tokens, places, answers)
            if len(places) > self._labels:
                self._labels, self._change = len(places), self._new_change()
        return self._prepared[1]

    def _batches(self, last: int) -> Iterator[Batch]:
        """The batches up to step `last`; for a GPU drawn in a thread while it trains on those before."""
        steps = iter(range(self.step, last))
        if self.device.type != "cuda":
            yield from (self.task.train_batch(self._data_seed, step, self.sequences) for step in steps)
            return
        with ThreadPoolExecutor(max_workers=1) as pool:

            def begun(count: int) -> list[Future[Batch]]:
                numbers = itertools.islice(steps, count)
                return [pool.submit(self.task.train_batch, self._data_seed, step, self.sequences) for step in numbers]

            waiting = deque(begun(AHEAD))
            while waiting:
                batch = waiting.popleft().result()
                waiting.extend(begun(1))
                yield batch

    def _new_change(self) -> StepFunction:
        """What a step does once the learning rate is set."""
        return Replayed(self._changed, self.device) if self._graphs else self._changed

    def _changed(self, tokens: Tensor, places: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
        """As `_train_step`. On CUDA nothing in it waits for the device, nor asks the host for more than launches."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss(tokens, places, answers)
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        norm = self._clipped()
        self.optimiser.step()  # pyright: ignore[reportUnknownMemberType]
        return loss.detach(), norm

    def _clipped(self) -> Tensor:
        """The norm of all gradients before they were clipped."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip or math.inf)

    def _forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half):
            return self.model(tokens.to(self.device, non_blocking=True))

    def _loss(self, tokens: Tensor, places: Tensor, answers: Tensor) -> Tensor:
        """The mean loss in nats over the labelled places; a language model's output layer acts there alone."""
        tokens, places, answers = (x.to(self.device, non_blocking=True) for x in (tokens, places, answers))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._half):
            if isinstance(self.model, LanguageModel):
                logits = self.model.headed(self.model.hidden(tokens).flatten(0, 1).index_select(0, places))
            else:
                logits = self.model(tokens).flatten(0, 1).index_select(0, places)
        return cross_entropy(logits.float(), answers, ignore_index=IGNORED)

    def _is_time_to_look(self, fraction: float) -> bool:
        last = self.step >= round(fraction * self.steps)
        return last or self.device.type != "cuda" or self.step % CHECK_EVERY_ON_CUDA == 0


def not_finite(task: Task, step: int, steps: int, loss: float, norm: float) -> str:
    """What is said of a training whose loss or gradient norm is no longer finite."""
    return (
        f"loss and gradient must be finite; got loss {loss:g} and gradient norm {norm:g} on {task.name} by step {step} "
        f"of {steps}; lower training.learning_rate or lengthen training.warmup"
    )


def _found(tensors: Mapping[str, Tensor], name: str, shape: torch.Size | None) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"the checkpoint must hold {name}; it does not: it is of another model")
    if shape is not None and tensors[name].shape != shape:
        raise CheckpointError(
            f"the checkpoint's {name} must have shape {list(shape)}; it has {list(tensors[name].shape)}: another model"
        )
    return tensors[name]


@contextlib.contextmanager
def typed_memory_errors() -> Generator[None, None, None]:
    """A failed allocation on the CPU as MemoryError; on CUDA torch has a type of its own, OutOfMemoryError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):
            asked = "".join(re.findall(r"tried to allocate (\d+) bytes", str(error))[:1])
            raise MemoryError(
                f"a tensor must fit into the machine's memory; {int(asked or 0) / 2**30:.1f} GiB were asked for and "
                "not there; lower training.batch_tokens or the model's sizes"
            ) from error
        raise
