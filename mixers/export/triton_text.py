"""The generated kernels and what launches them, one section of the file: operations of torch with names of their own.

The launching code is archsearch's own (`archsearch.kernels.triton`, from its operations down), read as text and linked
into one namespace. What it asks of a rule, and of the modules that write kernels, is answered by constants.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Sequence

from archsearch import __version__
from archsearch.kernels.triton import generation
from archsearch.kernels.triton.cutting import cut as cut_of
from archsearch.kernels.triton.facts import facts_of
from archsearch.kernels.triton.strengths import at_writes
from archsearch.lowering import NormalForm
from archsearch.mixers.export.kernel_text import names_of
from archsearch.mixers.export.linking import Source, defined_in, linked, sources
from archsearch.mixers.export.longer_text import longer_operations, longer_text
from archsearch.mixers.export.templates import defined, template

PACKAGE = "archsearch.kernels.triton"
ANSWERED = ("facts", "forms", "generation", "modules", "strengths")
"""Modules that know forms: an export says what they would answer of its own rule."""
THERE = ("Call", "Result")


def triton_text(form: NormalForm, name: str) -> str:
    """The section: the rule's facts, kernels, launching code, and the operations `archsearch_<name>_<hash>::...`.

    Kernels of long tokens are those of the shorter ones that the rule is cut into.
    """
    cut = cut_of(form)
    longer = [] if cut is None else [longer_text(cut, form.operands, names_of(form))]
    form = form if cut is None else cut.form
    written = generation.source(form)
    joining = Source.of("joining", generation.joining())
    kernels = Source.of("kernels", f"{written}\n\n{joining.text}\n")
    host = launching_code()
    user = Source("", "operation.run, operation.step", modules=("operation",))
    texts = linked([kernels, *host, user], defined())[:-1]
    digest = hashlib.sha256("\n".join([repr(form), *texts]).encode()).hexdigest()[:8]
    texts = [text.replace('"archsearch::', f'"archsearch_{name}_{digest}::') for text in texts]
    about = (ast.get_docstring(ast.parse(written)) or "").partition("\n")[2].strip("\n")
    head = template("triton_head", version=__version__, about=_commented(about))
    facts = [*_stand_ins(host), *_facts(form), _modules(texts[0])]
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


def _facts(form: NormalForm) -> list[str]:
    """The rule as far as the launching code asks about it, and the modules that would know more."""
    rule = facts_of(at_writes(form))
    operands = "".join(f'Facts(name="{name}"), ' for name in rule.operands)
    return [
        f"FORM = Facts(operands=({operands}))",
        "FACTS = Facts(",
        *(f"    {name}={_quoted(value)}," for name, value in vars(rule).items()),
        ")",
        "facts = SimpleNamespace(facts_of=lambda form: FACTS)",
        "forms = SimpleNamespace(form=lambda key: FORM)",
        "strengths = SimpleNamespace(at_writes=lambda form: form)",
        'generation = SimpleNamespace(source=lambda form: "", joining=lambda: "")',
    ]


def _quoted(value: object) -> str:
    return repr(value).replace("'", '"')


def _modules(kernels: str) -> str:
    """The kernels as a module of their own."""
    named = ", ".join(f"{name}={name}" for name in _launched(kernels))
    return f"modules = SimpleNamespace(load=lambda name, source: SimpleNamespace({named}))"


def _launched(kernels: str) -> list[str]:
    """The kernels that the host launches by name, out of all that a text defines."""
    asked = set(re.findall(r'(?:launch|Step)\(\s*"(\w+)"', "\n".join(source.text for source in launching_code())))
    return [name for name in defined_in(kernels) if name in asked]


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines())
