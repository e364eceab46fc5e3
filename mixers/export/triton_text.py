"""The generated kernels and what launches them, one section of the file: operations of torch with names of their own.

The launching code is archsearch's own (kernels/triton/plan.py and launch.py), read as text, with everything that it
asks of a rule replaced by the rule's answer.
"""

from __future__ import annotations

import ast
import hashlib
import re
from importlib.resources import files
from typing import Any, cast

from archsearch import __version__
from archsearch.dsl import Kind, Operand
from archsearch.kernels.triton import adjoint, generation
from archsearch.lowering import NormalForm
from archsearch.mixers.export.lines import Names
from archsearch.mixers.export.templates import defined, definitions, template

FOLDER = files("archsearch.kernels.triton")
SOURCES = ("plan.py", "launch.py")
IMPORTS = re.compile(r"\A.*?^(?:import|from) [^\n]*\n\n+(?!import|from)", re.DOTALL | re.MULTILINE)
LOADER = re.compile(r"^def _kernels\(.*?\n\n\n", re.DOTALL | re.MULTILINE)
QUESTION = re.compile(r"\b(?:generation|adjoint)\.(\w+)\(form\)")
EXISTENCE = re.compile(r"any\((?:[^()]|\([^()]*\))* in form\.(?:rows|decays)\)")
REWRITTEN = (
    (r"\bform\.decay_kind\b", "DECAY_KIND"),
    (r"\bform\.decays\b", "DECAYS"),
    (r"\blen\(form\.rows\)", "ROW_COUNT"),
    (r"\bform\.operands\b", "OPERANDS"),
    (r"adjoint\.is_number\((\w+)\)", r"\1.is_number"),
    (r"\b(\w+)\.kind is Kind\.VALUE", r"\1.is_value"),
    (r"^ +kernels = _kernels\(form\)\n", ""),
    (r"_kernels\(form\)\.", ""),
    (r"\bkernels\.", ""),
    (r"\b(?:form: NormalForm|kernels: Any),\s*", ""),
    (r"\b(?:form|kernels), ", ""),
    (r"^def (forward|backward|step)\(", r"def launch_\1("),
)
LAUNCH = re.compile(r"\b(\w+)\[\(")
LEFT = re.compile(r"\b(?:form|generation|adjoint|modules|kernels|Kind|NormalForm)\b(?=[.,):])")


def triton_text(form: NormalForm, names: Names, name: str) -> str:
    """The section: constants, kernels, launching code, and the operations `archsearch_<name>_<hash>::...`."""
    source = generation.source(form)
    kernels = IMPORTS.sub("", source).strip("\n")
    answers = {"DECAYS": len(form.decays), "DECAY_KIND": form.decay_kind, "ROW_COUNT": len(form.rows)}
    kernels, host = _apart(kernels, _host_text(form, answers))
    digest = hashlib.sha256("\n".join([repr(form), kernels, host]).encode()).hexdigest()[:8]
    about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[2].strip("\n")
    head = template("triton_head", version=__version__, about=_commented(about))
    constants = [f"{question} = {_answer(answer, form)}" for question, answer in answers.items()]
    absent = sorted(set(LAUNCH.findall(host)) - definitions(kernels))
    constants += [f"{kernel} = None  # a kernel that this rule does not need" for kernel in absent]
    operands = "\n".join(["OPERANDS = (", *(f"    {_operand(operand, names)}," for operand in form.operands), ")"])
    operations = template("triton_operations", namespace=f"archsearch_{name}_{digest}")
    parts = [
        head,
        "\n".join(["# fmt: off", operands, *constants]),
        kernels,
        f"{host}\n# fmt: on",
        operations,
    ]
    return "\n\n\n".join(parts)


def _host_text(form: NormalForm, answers: dict[str, Any]) -> str:
    """plan.py and launch.py with constants in place of questions about the rule; `answers` takes their values.

    Errors: NotImplementedError that names a line which asks in a way that has no answer here.
    """

    def answered(match: re.Match[str]) -> str:
        module = generation if match[0].startswith("generation") else adjoint
        answers[match[1].upper()] = getattr(module, match[1])(form)
        return match[1].upper()

    plan, launch = (IMPORTS.sub("", FOLDER.joinpath(name).read_text(encoding="utf-8")) for name in SOURCES)
    text = QUESTION.sub(answered, f"{plan.strip()}\n\n\n{LOADER.sub('', launch).strip()}")
    text = EXISTENCE.sub(lambda match: str(eval(match[0], {"form": form})), text)
    for question, answer in REWRITTEN:
        text = re.sub(question, answer, text, flags=re.MULTILINE)
    if left := LEFT.search(text):
        line = text[: left.start()].count("\n")
        raise NotImplementedError(f"an export does not know what to write for: {text.splitlines()[line].strip()}")
    return text


def _apart(kernels: str, host: str) -> tuple[str, str]:
    """Both with an underscore after the names that the rest of the file defines too."""
    for name in sorted((definitions(kernels) | definitions(host)) & defined()):
        kernels, host = (re.sub(rf"\b{name}\b", f"{name}_", text) for text in (kernels, host))
    return kernels, host


def _answer(value: Any, form: NormalForm) -> str:
    """A constant as code; operands by their places."""
    if not isinstance(value, tuple):
        return repr(value)
    places = [form.operands.index(operand) for operand in cast(tuple[Operand, ...], value)]
    return f"[OPERANDS[i] for i in {places}]"


def _operand(operand: Operand, names: Names) -> str:
    facts = (operand.is_address, operand.kind is Kind.VALUE, adjoint.is_number(operand))
    return f'Operand("{names[operand]}", "{operand.shape}", {", ".join(map(str, facts))})'


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
