"""A rule and a backend become a callable. A named backend is used or refused, never replaced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.errors import BackendError, OperandError, RuleError
from archsearch.kernels import chunkwise, entering, normalising, reference
from archsearch.kernels.call import Call, Result, checked
from archsearch.kernels.entry import Entry, check_entry
from archsearch.kernels.triton import forms
from archsearch.kernels.triton.cutting import Cut, cut
from archsearch.kernels.triton.entry import sections
from archsearch.lowering import NormalForm, lower

Backend = Literal["auto", "reference", "torch", "triton"]
BACKENDS = ("auto", "reference", "torch", "triton")
Memory = Literal["fast", "low"]
MEMORIES = ("fast", "low")


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule ready to run. Tensors come by operand name; see `archsearch.kernels.call.checked` for what must hold of
    them. With an `entry`, the operands that it names come raw, and its constants with them by name.
    The generated kernels run `cut` instead of a form of long tokens; `key`, `step_key` and `entry_key` are what they
    know the forms of all tokens and of one by in this process, and the entry.
    """

    rule: Rule
    normal_form: NormalForm
    backend: Backend
    chunk_size: int | None
    entry: Entry | None = None
    memory: Memory = "fast"
    cut: Cut | None = field(init=False, repr=False)
    key: str = field(init=False, repr=False)
    step_key: str = field(init=False, repr=False)
    entry_key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Now, since torch's compiler cannot hand a form to a function that it does not follow."""
        shorter = cut(self.normal_form)
        object.__setattr__(self, "cut", shorter)
        object.__setattr__(self, "key", forms.key(self.normal_form if shorter is None else shorter.form))
        object.__setattr__(self, "step_key", forms.key(self.normal_form))
        object.__setattr__(self, "entry_key", sections.key(self.entry or Entry(), self.normal_form))

    def __reduce__(self) -> tuple[Any, ...]:
        """Built anew where it is unpickled: another process does not know the key."""
        return CompiledRule, (self.rule, self.normal_form, self.backend, self.chunk_size, self.entry, self.memory)

    def __call__(
        self,
        *,
        initial_state: Tensor | None = None,
        scale: float | None = None,
        cu_seqlens: Tensor | None = None,
        **operands: Tensor,
    ) -> Result:
        """All tokens: `output` [B, T, HV, V], `state` [B, HV, K, V] float32 (float64 when an input is).

        `initial_state`: the same shape as `state`, zeros when left out. `scale` multiplies the address of the output
        read only. `cu_seqlens` [N + 1]: packed sequences along T with B = 1, N states. Errors: OperandError,
        BackendError.
        """
        call = self._checked(operands, initial_state, scale, cu_seqlens)
        return normalising.through(self.normal_form, call, self._run, aligned=self._backend(call) == "triton")

    def _run(self, call: Call) -> Result:
        """All tokens, without the normaliser."""
        match self._backend(call):
            case "reference":
                return reference.run(self.normal_form, call)
            case "torch":
                return chunkwise.run(self.normal_form, call, self.chunk_size)
            case _ if self.memory == "low":
                from archsearch.kernels.triton import low_memory

                if self.cut is not None:
                    return low_memory.run_cut(self.cut, self.key, call, self.chunk_size)
                return low_memory.run(self.normal_form, self.key, call, self.chunk_size)
            case _:
                from archsearch.kernels.triton import longer_tokens, operation

                if self.cut is not None:
                    return longer_tokens.run(self.cut, self.key, call, self.chunk_size)
                return operation.run(self.normal_form, self.key, call, self.chunk_size)

    def step(self, *, state: Tensor, scale: float | None = None, **operands: Tensor) -> Result:
        """One token: every shape without T; `output` [B, HV, V] and the state after it."""
        if state is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise OperandError("step takes a state [B, HV, K, V]; got None. Pass zeros before the first token")
        constants = () if self.entry is None else self.entry.constants
        token = {name: x if name in constants else _one_token(x) for name, x in operands.items()}
        call = self._checked(token, state, scale, None, one_token=True)
        return normalising.through(self.normal_form, call, self._step)

    def _step(self, call: Call) -> Result:
        """One token, without the normaliser."""
        if self._backend(call) == "triton":
            from archsearch.kernels.triton import operation

            return operation.step(self.normal_form, self.step_key, call)
        result = reference.run(self.normal_form, call)
        return Result(result.output[:, 0], result.state)

    @property
    def source(self) -> str:
        """The generated Triton source, whatever the backend."""
        from archsearch.kernels.triton import generation

        return generation.source(self.normal_form if self.cut is None else self.cut.form, self.chunk_size)

    def _checked(
        self,
        tensors: Mapping[str, Tensor],
        initial_state: Tensor | None,
        scale: float | None,
        cu_seqlens: Tensor | None,
        *,
        one_token: bool = False,
    ) -> Call:
        """The call, its operands as the rule takes them."""
        entry = self.entry
        if entry is None:
            return checked(self.normal_form, tensors, initial_state, scale, cu_seqlens, one_token=one_token)
        operands, constants = entering.parted(entry, self.normal_form, tensors)
        call = checked(
            self.normal_form, operands, initial_state, scale, cu_seqlens, entry.operands, one_token=one_token
        )
        entering.check_constants(entry, call, constants)
        if self._backend(call) != "triton":
            return call._replace(tensors=entering.entered(entry, call.tensors, constants))
        from archsearch.kernels.triton.entry import operation

        return call._replace(tensors=operation.run(entry, self.entry_key, call.tensors, constants))

    def _backend(self, call: Call) -> str:
        if self.backend == "auto":
            return "triton" if call.device.type == "cuda" and call.dtype != torch.float64 else "torch"
        if self.backend == "triton" and call.dtype == torch.float64:
            raise OperandError(
                'backend "triton" takes float32, float16 and bfloat16; got float64. Use backend="torch" or "reference"'
            )
        if self.backend == "triton" and call.device.type != "cuda" and not _interpreted():
            raise BackendError(
                f'backend "triton" needs tensors on a CUDA device; got {call.device}. '
                'Move them, or use backend="torch" or "auto"'
            )
        return self.backend


def compile(
    rule: Rule,
    backend: Backend = "auto",
    chunk_size: int | None = None,
    *,
    entry: Entry | None = None,
    memory: Memory = "fast",
) -> CompiledRule:
    """`rule` as a callable. backend "auto" is triton on a CUDA device and torch elsewhere; `chunk_size` None is the
    plan's choice. `entry`: operands that come raw, and what becomes of them; None: all come as the rule takes them.
    memory "low" has the generated kernels hold about half as much at once and keep next to nothing between forward and
    backward, which computes it again; the torch backend, where "auto" chooses it, knows no modes.

    Errors: RuleError for what is no rule, HoleError for open holes, BackendError for a backend that is unknown or
    cannot run here, ConfigError for an entry that does not fit the rule.
    """
    if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RuleError(f"compile takes a Rule; got {rule!r}. A rule of the zoo is archsearch.rules[name]")
    if backend not in BACKENDS:
        raise BackendError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise BackendError(
            f"chunk_size must be a whole number of at least 1 token; got {chunk_size!r}. "
            "Leave it out for the plan's choice"
        )
    if memory not in MEMORIES:
        raise BackendError(f"memory must be one of {', '.join(MEMORIES)}; got {memory!r}")
    if memory == "low" and backend in ("reference", "torch"):
        raise BackendError(
            f'memory="low" is a mode of the generated kernels; got backend {backend!r}. Use backend="triton" or "auto"'
        )
    if backend == "triton" and not torch.cuda.is_available() and not _interpreted():
        raise BackendError('backend "triton" needs a CUDA device; this machine has none. Use backend="torch" or "auto"')
    form = lower(rule)
    if entry is not None:
        check_entry(entry, form)
    return CompiledRule(rule, form, backend, chunk_size, entry=entry, memory=memory)


def _one_token(tensor: Tensor) -> Tensor:
    """With a T of 1 after the batch; what has no batch is left for the check of the call to name."""
    return tensor[:, None] if isinstance(tensor, Tensor) and tensor.dim() else tensor  # pyright: ignore[reportUnnecessaryIsInstance]


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"
