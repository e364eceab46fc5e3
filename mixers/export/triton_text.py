"""The generated kernels and what launches them, as one section of the file: an operation of torch under a name of its own.

The launching code is archsearch's own (kernels/triton/plan.py and launch.py), read as text, with everything that it asks
of a rule replaced by the rule's answer.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from archsearch import __version__
from archsearch.dsl import Kind, Operand
from archsearch.kernels.triton import adjoint, generation
from archsearch.lowering import NormalForm
from archsearch.mixers.export.lines import Names
from archsearch.mixers.export.templates import template

FOLDER = files("archsearch.kernels.triton")
IMPORTS = re.compile(r"\A.*?^(?:import|from) [^\n]*\n\n+(?!import|from)", re.DOTALL | re.MULTILINE)
LOADER = re.compile(r"^def _kernels\(.*?\n\n\n", re.DOTALL | re.MULTILINE)
QUESTIONS = (
    (r"any\(point\.sign is not None for point in form\.decays\)", "SIGNED"),
    (r"any\(row\.residual for row in form\.rows\)", "SOLVED"),
    (r"generation\.has_bonus\(form\)", "BONUS"),
    (r"generation\.span\(form\)", "SPAN"),
    (r'form\.decay_kind == "channel"', "CHANNEL"),
    (r"\bform\.decays\b", "DECAYS"),
    (r"\bform\.operands\b", "OPERANDS"),
    (r"adjoint\.tiled\(form\)", "TILED"),
    (r"adjoint\.numbers\(form\)", "NUMBERS"),
    (r"adjoint\.is_number\((\w+)\)", r"\1.is_number"),
    (r"\b(\w+)\.kind is Kind\.VALUE", r"\1.is_value"),
    (r"^ +kernels = _kernels\(form\)\n", ""),
    (r"_kernels\(form\)\.", ""),
    (r"\bkernels\.", ""),
    (r"\b(?:form: NormalForm|kernels: Any),\s*", ""),
    (r"\b(?:form|kernels), ", ""),
    (r"^def (forward|backward|step)\(", r"def launch_\1("),
)
LEFT = re.compile(r"\b(?:form|generation|adjoint|modules|kernels|Kind|NormalForm)\b(?=[.,):])")


def triton_text(form: NormalForm, names: Names, name: str) -> str:
    """The section: constants, kernels, launching code, and the operations `archsearch_<name>_<hash>::...`."""
    kernels = IMPORTS.sub("", generation.source(form))
    host = host_text()
    digest = hashlib.sha256("\n".join([repr(form), kernels, host]).encode()).hexdigest()[:8]
    head = template("triton_head", version=__version__, form=_commented(str(form)), plan=str(generation.span(form)))
    constants = _constants(form, names)
    operations = template("triton_operations", namespace=f"archsearch_{name}_{digest}")
    parts = [f"{head}\n\n\n# fmt: off\n{constants}", kernels.strip("\n"), f"{host}\n# fmt: on", operations]
    return "\n\n\n".join(parts)


def host_text() -> str:
    """plan.py and launch.py with a rule's answers in place of its normal form."""
    plan, launch = (
        IMPORTS.sub("", FOLDER.joinpath(f"{part}.py").read_text(encoding="utf-8")) for part in ("plan", "launch")
    )
    text = f"{plan.strip()}\n\n\n{LOADER.sub('', launch).strip()}"
    for question, answer in QUESTIONS:
        text = re.sub(question, answer, text, flags=re.MULTILINE)
    if left := LEFT.search(text):
        line = text[: left.start()].count("\n")
        raise NotImplementedError(f"an export does not know what to write for: {text.splitlines()[line].strip()}")
    return text


def _constants(form: NormalForm, names: Names) -> str:
    tiled, numbers = (
        [index for index, operand in enumerate(form.operands) if operand in chosen]
        for chosen in (adjoint.tiled(form), adjoint.numbers(form))
    )
    answers = {
        "SPAN": generation.span(form),
        "CHANNEL": form.decay_kind == "channel",
        "DECAYS": bool(form.decays),
        "SIGNED": any(decay.sign is not None for decay in form.decays),
        "SOLVED": any(row.residual for row in form.rows),
        "BONUS": generation.has_bonus(form),
    }
    return "\n".join(
        [
            *(f"{name} = {value}" for name, value in answers.items()),
            "OPERANDS = (",
            *(f"    {_operand(operand, names)}," for operand in form.operands),
            ")",
            f"TILED = [OPERANDS[i] for i in {tiled}]  # one number a channel",
            f"NUMBERS = [OPERANDS[i] for i in {numbers}]  # one number a head",
        ]
    )


def _operand(operand: Operand, names: Names) -> str:
    facts = (operand.is_address, operand.kind is Kind.VALUE, adjoint.is_number(operand))
    return f'Operand("{names[operand]}", "{operand.shape}", {", ".join(map(str, facts))})'


def _commented(text: str) -> str:
    return "\n".join(f"#     {line}" for line in text.splitlines())
