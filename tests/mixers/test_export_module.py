"""The generated file: the same function as archsearch's own modules, in Python that a person reads."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from archsearch.dsl import (
    Rule,
    bonus,
    channel_gate,
    decay,
    delta_write,
    erase,
    gate,
    key,
    log_decay,
    query,
    read,
    simultaneous,
    value,
    write,
)
from archsearch.kernels.conformance import made_up
from archsearch.kernels.dispatch import compile
from archsearch.lowering import lower
from archsearch.mixers.export.module import Module
from archsearch.mixers.export.module_text import module_text
from archsearch.mixers.export.triton_text import ANSWERED
from archsearch.mixers.gated_delta_product import delta_product
from archsearch.mixers.layer import options as o
from archsearch.mixers.layer.partner_options import Griffin, Latent, Mamba
from archsearch.mixers.layer.planning import layer_of
from archsearch.mixers.models.generation import generate
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

ROOT = Path(__file__).resolve().parents[2]
MODEL = Model(width=32, heads=2, layers=2)
VOCABULARY = 50

q, k, v, e, u = query("q"), key("k"), value("v"), key("e"), key("u")
g, beta, gamma, lam = log_decay("g"), gate("beta"), gate("gamma"), gate("lam")
u2 = value("u2")
b, w, gc = channel_gate("b"), channel_gate("w", of="value"), log_decay("gc", per="channel")

STEPS: dict[str, tuple[Any, ...]] = {
    "together": (decay(g), simultaneous(erase(e, strength=gamma), delta_write(k, v, strength=beta)), read(q)),
    "previous": (decay(g), delta_write(k, v, strength=beta, reads="previous"), read(q - 0.5 * k)),
    "early": (read(q, bonus=bonus(u, k, v)), decay(g), write(k, v)),
    "at_the_query": (erase(q, strength=0.5 * gamma), decay(-0.1), write(k + lam * q, v), read(q, scale=1.0)),
    "between": (decay(g), erase(e), read(q), decay(g), delta_write(k, v, strength=beta), decay(-0.2)),
    "counted": (decay(g), delta_write(k, v - 0.5 * u2, strength=beta), write(k, u2), read(q, normaliser=0.5)),
    "signs": (decay(log_decay("a", signed=True)), erase(e), decay(gc), delta_write(k, v, reads="previous"), read(q)),
    "nothing": (write(k - k, v), read(q)),
    "names": (
        decay(log_decay("torch")),
        delta_write(key("address"), value("target"), strength=gate("x")),
        read(query("rows") + key("down")),
    ),
    "long_names": (
        delta_write(
            key("a_rather_long_name_of_a_key"),
            value("a_rather_long_name_of_a_value"),
            strength=gate("a_rather_long_name_of_a_strength"),
            residual=key("a_rather_long_name_of_a_key") - 0.25 * gate("another_long_gate") * query("the_name_of_a_q"),
        ),
        read(query("the_name_of_a_q")),
    ),
    "odd": (
        decay(gc),
        erase(e, strength=gamma),
        erase(u),
        delta_write(k, w * v, strength=beta, residual=b * k),
        read(q),
    ),
    "decays": (decay(g), decay(gc), decay(log_decay("h")), delta_write(k, v, strength=beta), read(q)),
    "signed": (decay(log_decay("a", signed=True)), delta_write(k, v, strength=beta), read(q)),
}
LONG = (
    delta_product(5, gated=True),
    *(rule for rule in made_up.LONG if rule.name in ("signed_channels", "previous_late")),
)
MADE_UP = {name: Rule(name, *steps) for name, steps in STEPS.items()} | {rule.name: rule for rule in LONG}
LAYERS = {
    "odd": o.Layer(
        conv=0,
        output_gate="none",
        skip=True,
        operands={
            "e": o.Projection(of="q"),
            "u": o.Static(),
            "gc": o.BoundedDecay("eda"),
            "k": o.Vector(conv=4, activation="elu+1", norm="rms"),
            "v": o.LowRank(6, bias=True),
            "beta": o.StepSize(),
            "gamma": o.Linear(bias=True),
        },
    ),
    "decays": o.Layer(
        operands={"g": o.FixedDecay(), "gc": o.LogSigmoid(), "h": o.StepDecay(of="beta"), "beta": o.StepSize()}
    ),
    "signed": o.Layer(output_gate="sigmoid", gate_first=True, gate_projection=o.LowRank(4, shared=True, bias=True)),
    "names": o.Layer(operands={"down": o.Vector(activation="none", norm="none")}),
}
HYBRID = Module(
    "hybrid",
    rules["q_delta"],
    o.Layer(
        value_heads=4,
        expand_v=2.0,
        conv=3,
        conv_bias=True,
        operands={"q": o.Vector(rotary=True), "beta": o.LowRank(4)},
    ),
    32,
    2,
    replace(MODEL, layers=4, pattern=("rule", "attention", "conv"), mlp_ratio=0, tie_embeddings=False),
    VOCABULARY,
)
PARTNERS = replace(
    MODEL, layers=5, pattern=("window", "mla", "rule", "attention"), window=4, latent=Latent(query_rank=7)
)
VECTORS = replace(MODEL, layers=3, pattern=("mamba", "rule", "griffin"), mamba=Mamba(state=5), griffin=Griffin(24))
MODULES = {
    **{name: Module(name, rules[name], layer_of(rules[name], None), 32, 2, MODEL, VOCABULARY) for name in rules},
    **{name: Module(name, MADE_UP[name], layer, 32, 2, MODEL, VOCABULARY) for name, layer in LAYERS.items()},
    "hybrid": HYBRID,
    "partners": Module("partners", rules["q_delta"], o.Layer(), 32, 2, PARTNERS, VOCABULARY),
    "vectors": Module("vectors", rules["q_delta"], o.Layer(), 32, 2, VECTORS, VOCABULARY),
    "attending": Module("attending", rules["gla"], o.Layer(), 32, 2, replace(MODEL, pattern=("mla",)), VOCABULARY),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated")


def imported(module: Module, folder: Path) -> ModuleType:
    """The generated file as a module, written and imported once."""
    name = f"exported_{module.name}{'' if module.model else '_alone'}"
    path = folder / f"{name}.py"
    if name not in sys.modules or not path.exists():
        path.write_text(module_text(module), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def layer_alone(rule: Rule) -> Module:
    return Module(rule.name, rule, o.Layer(), 16, 1)


def pair(module: Module, folder: Path) -> tuple[LanguageModel, Any]:
    """archsearch's model with weights far from their start, and the generated one with the same."""
    assert module.model is not None
    own = LanguageModel(module.rule, module.model, module.layer, module.vocabulary, "torch").eval()
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    other = imported(module, folder).LanguageModel(backend="torch").eval()
    other.load_state_dict(own.state_dict())
    return own, other


def inputs(rule: Rule, sizes: Mapping[str, int]) -> list[Tensor]:
    """Operands in float64, in the order of the rule."""
    made: list[Tensor] = []
    for operand in rule.operands.values():
        x = torch.randn([sizes[dim] for dim in operand.shape.strip("[]").split(", ")], dtype=torch.float64)
        kind = operand.kind.name
        if operand.is_address:
            x = torch.nn.functional.normalize(x, dim=-1)
        elif kind in ("GATE", "CHANNEL_GATE"):
            x = x.sigmoid()
        elif kind == "LOG_DECAY":
            x = -x.exp()
        elif kind == "SIGN":
            x = x.sign()
        made.append(x)
    return made


@pytest.mark.parametrize("name", [*rules, *MADE_UP])
def test_generated_rule_is_the_token_loop_of_archsearch(name: str, folder: Path) -> None:
    rule = MADE_UP.get(name) or rules[name]
    module = imported(layer_alone(rule), folder)
    operands = inputs(rule, {"B": 2, "T": 21, "H": 1, "HV": 2, "K": 5, "V": 3})
    state = torch.randn(2, 2, 5, lower(rule).columns(3), dtype=torch.float64)
    named = dict(zip(rule.operands, operands, strict=True))
    expected = compile(rule, backend="reference")(initial_state=state, scale=None, cu_seqlens=None, **named)
    for backend, chunk in (("reference", 64), ("torch", 4), ("torch", 7), ("torch", 64)):
        output, after = module.mix(module.Operands(*operands), state, backend=backend, chunk_size=chunk)
        torch.testing.assert_close(output, expected.output, rtol=0, atol=1e-11)
        torch.testing.assert_close(after, expected.state, rtol=0, atol=1e-11)


def test_generated_rule_rounds_a_quotient_alone(folder: Path) -> None:
    rule = MADE_UP["counted"]
    module, state = imported(layer_alone(rule), folder), torch.randn(2, 2, 5, 4)
    drawn = inputs(rule, {"B": 2, "T": 21, "H": 1, "HV": 2, "K": 5, "V": 3})
    short = [x.bfloat16() for x in drawn]
    (found, _), (expected, _) = (
        module.mix(module.Operands(*given), state, backend="torch") for given in (short, [x.float() for x in short])
    )
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("name", ["gated_delta_net", "kda"])
def test_generated_rule_forgets_everything_at_a_decay_of_zero(name: str, folder: Path) -> None:
    rule = rules[name]
    module = imported(layer_alone(rule), folder)
    operands = inputs(rule, {"B": 2, "T": 21, "H": 1, "HV": 2, "K": 5, "V": 3})
    log = operands[list(rule.operands).index("g")]
    log[:, ::5] = -torch.inf
    state = torch.randn(2, 2, 5, 3, dtype=torch.float64)
    expected, after = module.mix(module.Operands(*operands), state, backend="reference")
    found, found_after = module.mix(module.Operands(*operands), state, backend="torch", chunk_size=16)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(found_after, after, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", MODULES)
def test_generated_model_equals_archsearchs_whole_packed_and_in_pieces(name: str, folder: Path) -> None:
    own, other = pair(MODULES[name], folder)
    tokens = torch.randint(VOCABULARY, (2, 21))
    offsets = torch.tensor([0, 4, 4, 21])
    with torch.no_grad():
        expected, whole = own(tokens), other(tokens)
        cache = other.init_cache(2)
        pieces = torch.cat([other(part, cache) for part in tokens.split([5, 1, 1, 14], dim=1)], dim=1)
        packed = other(tokens[:1], cu_seqlens=offsets)
        packed_expected = own(tokens[:1], cu_seqlens=offsets)
    bound = 1e-6 * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(whole, expected, rtol=0, atol=bound)
    torch.testing.assert_close(packed, packed_expected, rtol=0, atol=bound)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=4 * bound)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_give_what_archsearch_gives(dtype: torch.dtype, folder: Path) -> None:
    own, other = pair(MODULES["eda"], folder)
    tokens = torch.randint(VOCABULARY, (2, 40))
    with torch.no_grad():
        exact, expected, found = own(tokens), own.to(dtype)(tokens), other.to(dtype)(tokens)
    assert found.dtype == expected.dtype
    bound = {torch.bfloat16: 2e-2, torch.float64: 1e-11}[dtype]
    torch.testing.assert_close(found, expected, rtol=0, atol=bound * float(exact.abs().max()))
    torch.testing.assert_close(found.float(), exact, rtol=0, atol=5e-2 * float(exact.abs().max()))


def test_generated_text_is_archsearchs_and_that_of_recomputation(folder: Path) -> None:
    own, other = pair(MODULES["hybrid"], folder)
    prompt = torch.randint(VOCABULARY, (2, 3))
    tokens = other.generate(prompt, 6)
    assert torch.equal(tokens, generate(own, prompt, 6))
    with torch.no_grad():
        assert torch.equal(tokens[:, 3:], other(tokens[:, :-1])[:, 2:].argmax(-1))
    drawn = [
        other.generate(prompt, 6, temperature=1.0, top_k=5, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    ]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("name", ["hybrid", "partners", "vectors"])
def test_state_size_counts_what_a_sequence_needs(name: str, folder: Path) -> None:
    own, other = pair(MODULES[name], folder)
    cache = other.init_cache(1)
    other(torch.randint(VOCABULARY, (1, 7)), cache)
    assert other.state_size(7) == sum(each.nbytes for each in cache)
    assert (
        imported(MODULES["q_delta"], folder).LanguageModel().state_size(10_000)
        == LanguageModel(rules["q_delta"], MODEL, None, VOCABULARY).state_bytes
    )
    assert own.state_bytes == other.state_size(0)


@pytest.mark.parametrize("name", ["odd", "signed", "mamba2"])
def test_untrained_layer_of_other_sizes_learns(name: str, folder: Path) -> None:
    module = imported(MODULES[name], folder)
    layer = module.Mixer(24, num_heads=3, head_dim=8, num_v_heads=3)
    x = torch.randn(2, 9, 24)
    optimiser = torch.optim.AdamW(layer.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(4):
        loss = (layer(x) - x).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_padding_changes_neither_outputs_nor_state(folder: Path) -> None:
    layer = imported(MODULES["hybrid"], folder).Layer(32, num_heads=2, head_dim=16, num_v_heads=4, layer_idx=3)
    x = torch.randn(2, 12, 32)
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, :7] = 0
    output, _, past = layer(x, attention_mask=mask, use_cache=True)
    alone, _, past_alone = layer(x[1:, 7:], use_cache=True)
    whole, none, nothing = layer(x[:1])
    torch.testing.assert_close(output[1:, 7:], alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(output[:1], whole, rtol=0, atol=1e-5)
    assert not output[1, :7].any()
    assert none is None and nothing is None
    torch.testing.assert_close(past[3].state[1:], past_alone[3].state, rtol=0, atol=1e-5)
    following = torch.randn(2, 1, 32)
    after, _, _ = layer(following, attention_mask=torch.cat([mask, mask[:, -1:]], dim=1), past_key_values=past)
    after_alone, _, _ = layer(following[1:], past_key_values=past_alone)
    torch.testing.assert_close(after[1:], after_alone, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"attention_mask must be \[B, T\] of 0 and 1"):
        layer(x, attention_mask=mask[:, None])


def test_gate_constants_are_marked_to_carry_no_weight_decay(folder: Path) -> None:
    layer = imported(MODULES["mamba2"], folder).Mixer()
    marked = {name for name, each in layer.named_parameters() if getattr(each, "_no_weight_decay", False)}
    assert marked == {"sources.g.A_log", "sources.dt.dt_bias", "output.D"}


@pytest.mark.parametrize("name", [*MODULES, *MADE_UP])
def test_generated_file_imports_torch_and_triton_alone(name: str, folder: Path) -> None:
    tree = ast.parse(module_text(MODULES.get(name) or layer_alone(MADE_UP[name])))
    found = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    found |= {str(node.module).partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - set(sys.stdlib_module_names) == {"torch", "triton"}
    names = Counter(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
    assert {each for each, count in names.items() if count > 1} <= {"_"}


@pytest.fixture(scope="module")
def every_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every_file")
    for name in (*MODULES, *MADE_UP):
        text = module_text(MODULES.get(name) or layer_alone(MADE_UP[name]))
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def ruff(folder: Path, *arguments: str) -> str:
    """What ruff finds wrong in a folder, with the project's options."""
    command = [sys.executable, "-m", "ruff", *arguments, "--config", str(ROOT / "pyproject.toml"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_generated_files_are_formatted(every_file: Path) -> None:
    assert ruff(every_file, "format", "--diff") == ""


def test_generated_files_name_nothing_that_is_not_there(every_file: Path) -> None:
    assert ruff(every_file, "check", "--select", "F401,F811,F821") == ""


@pytest.mark.parametrize("name", ["gla", "hybrid"])
def test_stand_ins_answer_all_that_is_asked_of_them(name: str) -> None:
    """What stands in for a module of archsearch has every name that the launching code takes of it, on a GPU too."""
    tree = ast.parse(module_text(MODULES[name]))
    answered = {
        target.id: {keyword.arg for keyword in node.value.keywords}
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ANSWERED
    }
    assert answered.keys() == set(ANSWERED)
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):  # never evaluated
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    asked = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in answered
    }
    assert [f"{module}.{name}" for module, name in sorted(asked) if name not in answered[module]] == []


@pytest.mark.parametrize("name", ["hybrid", "partners", "vectors"])
def test_every_function_and_class_says_what_it_is(name: str) -> None:
    tree = ast.parse(module_text(MODULES[name]))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    public = [node for node in named if not node.name.startswith("_")]
    assert [node.name for node in public if ast.get_docstring(node) is None] == []


def test_operations_of_two_modules_never_share_a_name() -> None:
    spaces = {name: set(re.findall(r'custom_op\("(\w+)::', module_text(module))) for name, module in MODULES.items()}
    assert all(len(space) == 1 for space in spaces.values())
    assert len(set().union(*spaces.values())) == len(spaces)
    renamed = replace(MODULES["q_delta"], rule=replace(rules["eda_scalar"]), layer=o.Layer())
    assert not spaces["q_delta"] & set(re.findall(r'custom_op\("(\w+)::', module_text(renamed)))


def test_backend_is_used_or_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported(MODULES["q_delta"], folder)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    state = torch.zeros(1, 1, 4, 4)
    with pytest.raises(ValueError, match="backend must be auto, reference, torch or triton; got 'cuda'"):
        module.chosen("cuda", state)
    with pytest.raises(ValueError, match='backend "triton" needs Triton and tensors on a CUDA device'):
        module.chosen("triton", state)
    assert module.chosen("auto", state) == "torch"


INTERPRETED = """
import importlib.util, json, sys, torch

spec = importlib.util.spec_from_file_location("exported", sys.argv[1])
module = sys.modules["exported"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
torch.manual_seed(0)
shape = {"B": 1, "T": 18, "H": 1, "HV": 2, "K": 16, "V": 16}
operands = []
for dims, kind in json.loads(sys.argv[2]):
    x = torch.randn([shape[dim] for dim in dims])
    if kind in ("QUERY", "KEY"):
        x = torch.nn.functional.normalize(x, dim=-1)
    x = -x.exp() if kind == "LOG_DECAY" else x.sigmoid() if "GATE" in kind else x.sign() if kind == "SIGN" else x
    operands.append(x.requires_grad_(kind != "SIGN"))
state = torch.randn(1, 2, 16, int(sys.argv[3]), requires_grad=True)
found = {}
for backend in ("reference", "triton"):
    output, after = module.mix(module.Operands(*operands), state, backend=backend, chunk_size=16)
    leaves = [x for x in (*operands, state) if x.requires_grad]
    gradients = torch.autograd.grad(output.sin().sum() + after.cos().sum(), leaves)
    with torch.no_grad():
        step = module.mix(module.Operands(*(x[:, :1] for x in operands)), state, backend=backend)
    found[backend] = [output, after, *gradients, *step]
print(max(float((a - b).abs().max() / a.abs().max().clamp(min=1.0)) for a, b in zip(*found.values())))
"""


@pytest.mark.parametrize(
    "module", [MODULES["eda_q_delta"], *map(layer_alone, (*LONG, MADE_UP["counted"]))], ids=lambda module: module.name
)
def test_inlined_kernels_equal_the_token_loop_with_every_gradient(module: Module, tmp_path: Path) -> None:
    path = tmp_path / f"{module.name}.py"
    path.write_text(module_text(module), encoding="utf-8")
    given = [(operand.shape.strip("[]").split(", "), operand.kind.name) for operand in module.rule.operands.values()]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    columns = str(lower(module.rule).columns(16))
    command = [sys.executable, "-I", "-c", INTERPRETED, str(path), json.dumps(given), columns]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2e-5


SCANNED = """
import importlib.util, sys, torch

spec = importlib.util.spec_from_file_location("exported", sys.argv[1])
module = sys.modules["exported"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
torch.manual_seed(0)
module.SCAN, module.SELECTIVE = (4, 2), (4, 8)
x, offsets = torch.randn(1, 10, 6, requires_grad=True), torch.tensor([0, 3, 3, 10])
largest = 0.0
for made in (
    lambda backend: module.MambaLayer(6, channels=3, state=3, rank=2, conv=3, backend=backend),
    lambda backend: module.GriffinLayer(6, channels=3, blocks=1, conv=3, backend=backend),
):
    layers = {backend: made(backend) for backend in ("torch", "triton")}
    layers["triton"].load_state_dict(layers["torch"].state_dict())
    found = []
    for layer in layers.values():
        y = layer(x, None, offsets)
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])])
    largest = max(largest, *(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in zip(*found)))
print(largest)
"""


def test_inlined_scans_equal_their_torch_form_with_every_gradient(tmp_path: Path) -> None:
    path = tmp_path / "vectors.py"
    path.write_text(module_text(MODULES["vectors"]), encoding="utf-8")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-I", "-c", SCANNED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout) < 2e-5
