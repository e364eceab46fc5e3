"""The generated kernels and what launches them, one section of the file: operations of torch with names of their own.

The launching code is archsearch's own (`archsearch.kernels.triton`, from its operations down), read as text and linked
into one namespace. What it asks of a rule, and of the modules that write kernels, is answered by constants.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from archsearch import __version__
from archsearch.dsl import Kind, Operand
from archsearch.kernels.triton import adjoint, generation
from archsearch.kernels.triton.cutting import cut as cut_of
from archsearch.lowering import Decay, NormalForm, Row
from archsearch.mixers.export.kernel_text import names_of
from archsearch.mixers.export.linking import Source, defined_in, linked, sources
from archsearch.mixers.export.longer_text import longer_operations, longer_text
from archsearch.mixers.export.templates import defined, template

PACKAGE = "archsearch.kernels.triton"
ANSWERED = ("adjoint", "forms", "generation", "modules")
QUESTIONING: dict[str, ModuleType] = {"adjoint": adjoint, "generation": generation}
THERE = ("Call", "Kind", "Result")


def triton_text(form: NormalForm, name: str) -> str:
    """The section: the rule's facts, kernels, launching code, and the operations `archsearch_<name>_<hash>::...`.

    Kernels of long tokens are those of the shorter ones that the rule is cut into.
    """
    cut = cut_of(form)
    longer = [] if cut is None else [longer_text(cut, form.operands, names_of(form))]
    form = form if cut is None else cut.form
    written = generation.source(form)
    kernels = Source.of("kernels", written)
    host = launching_code()
    user = Source("", "operation.run, operation.step", modules=("operation",))
    texts = linked([kernels, *host, user], defined())[:-1]
    digest = hashlib.sha256("\n".join([repr(form), *texts]).encode()).hexdigest()[:8]
    texts = [text.replace('"archsearch::', f'"archsearch_{name}_{digest}::') for text in texts]
    about = (ast.get_docstring(ast.parse(written)) or "").partition("\n")[2].strip("\n")
    head = template("triton_head", version=__version__, about=_commented(about))
    asked = "\n".join(source.text for source in host)
    answers = [_answers(module, asked, form) for module in QUESTIONING]
    facts = [*_stand_ins(host), *_form(form), *answers, *_modules(asked, texts[0])]
    call = template("triton_operations") if cut is None else longer_operations(cut)
    return "\n\n\n".join(
        [head, "\n".join(["# fmt: off", *facts]), *texts[:-1], f"{texts[-1]}\n# fmt: on", *longer, call]
    )


def launching_code() -> list[Source]:
    """archsearch's own modules that launch kernels, each after what it needs."""
    return sources(PACKAGE, "operation", ANSWERED)


def _stand_ins(host: Sequence[Source]) -> list[str]:
    """Names of archsearch that the launching code has in annotations, and its errors."""
    names = {name for source in host for module, name in source.foreign if name and module.startswith("archsearch")}
    others = sorted(names - set(THERE))
    errors = [name for name in others if name.endswith("Error")]
    annotations = [name for name in others if name not in errors]
    return [*(f"{name} = ValueError" for name in errors), " = ".join([*annotations, "Facts"])]


def _form(form: NormalForm) -> list[str]:
    """The normal form as far as the launching code looks at it: a part of a row is there or not."""
    kinds = ", ".join(f'{kind.name}="{kind.value}"' for kind in Kind)
    return [
        f"Kind = SimpleNamespace({kinds})",
        "FORM = Facts(",
        f'    name="{form.name}",',
        f'    decay_kind="{form.decay_kind}",',
        "    operands=(",
        *(f"        {_operand(operand)}," for operand in form.operands),
        "    ),",
        f"    decays=({''.join(f'{_decay(decay)}, ' for decay in form.decays)}),",
        "    rows=(",
        *(f"        {_row(row)}," for row in form.rows),
        "    ),",
        ")",
    ]


def _operand(operand: Operand) -> str:
    facts = {"per": operand.per, "of": operand.of, "is_address": operand.is_address, "is_gate": operand.is_gate}
    named = ", ".join(f"{fact}={value!r}".replace("'", '"') for fact, value in facts.items())
    return f'Facts(name="{operand.name}", kind=Kind.{operand.kind.name}, shape="{operand.shape}", {named})'


def _decay(decay: Decay) -> str:
    sign = None if decay.sign is None else decay.sign.name
    return f"Facts(sign={sign!r}, per_channel={decay.per_channel})".replace("'", '"')


def _row(row: Row) -> str:
    parts = ", ".join(f"{part}={bool(getattr(row, part))}" for part in ("write", "residual", "target"))
    return f"Facts(stage={row.stage}, decays={row.decays}, previous={row.previous}, {parts})"


def _answers(module: str, asked: str, form: NormalForm) -> str:
    """What a module would say of this rule, to every question in the text."""
    names = sorted(set(re.findall(rf"\b{module}\.(\w+)\(", asked)))
    answers = ", ".join(f"{name}={_answer(getattr(QUESTIONING[module], name), form)}" for name in names)
    return f"{module} = SimpleNamespace({answers})"


def _answer(function: Any, form: NormalForm) -> str:
    parameters = list(inspect.signature(function).parameters)
    if parameters[0] == "operand":
        names = [operand.name for operand in form.operands if function(operand)]
        return f"lambda operand: operand.name in {names!r}".replace("'", '"')
    value = "" if function is generation.source else function(form)
    if isinstance(value, tuple):
        places = [form.operands.index(operand) for operand in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return f"lambda form: [form.operands[i] for i in {places}]"
    return f"lambda form: {value!r}"


def _modules(asked: str, kernels: str) -> list[str]:
    """The rule by its key, and the kernels as a module of their own."""
    others = set(re.findall(r"\b(?:modules|forms)\.(\w+)\(", asked)) - {"load", "form"}
    if others:
        raise LookupError(f"an export does not know what to answer to {', '.join(sorted(others))}")
    present = defined_in(kernels)
    wanted = dict.fromkeys(("accumulate", *generation.KERNELS))
    named = ", ".join(f"{name}={name}" for name in wanted if name in present)
    return [
        "forms = SimpleNamespace(form=lambda key: FORM)",
        f"modules = SimpleNamespace(load=lambda name, source: SimpleNamespace({named}))",
    ]


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
