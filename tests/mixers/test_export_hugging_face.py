"""The classes for transformers, in a fresh process that cannot import archsearch: each line is one of its findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from archsearch.mixers.export.export import export_module
from archsearch.mixers.export.module import Module
from archsearch.mixers.layer import options as o
from archsearch.mixers.models.generation import generate
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

MODEL = Model(width=32, heads=2, layers=2, pattern=("rule", "conv"))
SPEAKER = Module("speaker", rules["mamba2"], o.Layer(operands={"dt": o.StepSize()}), 32, 2, MODEL, 257, text=True)
PATTERN = ("rule", "attention", "window", "mla", "mamba", "griffin")
MIXED = Model(width=32, heads=2, layers=6, pattern=PATTERN, window=6)
HYBRID = Module("hybrid", rules["q_delta"], o.Layer(), 32, 2, MIXED, 257, text=True)

SCRIPT = r"""
import json, os, re, sys, warnings
sys.modules["archsearch"] = None
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

here, hybrid, expected = sys.argv[1], sys.argv[2], load_file(sys.argv[3])
weights = load_file(f"{here}/model.safetensors")
find = {}


def load(path, **options):
    return AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, **options).eval()


def equal(a, b):
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


model, tokenizer = load(here), AutoTokenizer.from_pretrained(here, trust_remote_code=True)
prompt = tokenizer("def main(", return_tensors="pt")
with torch.no_grad():
    logits = model(**prompt).logits
    find["reload is bit-exact"] = equal(model.state_dict(), weights)
    find["logits are archsearch's"] = float((logits - expected["logits"]).abs().max()) < 1e-5
    find["tokens are bytes"] = prompt.input_ids.tolist() == [[256, *b"def main("]]
    text = "naïve λ₁ ü\n\t\x00"
    back = tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
    find["tokenizer goes there and back"] = back == text

    made = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    find["greedy text is archsearch's"] = torch.equal(made, expected["generated"])
    both = tokenizer(["def main(", "x"], return_tensors="pt", padding=True)
    batch = model.generate(**both, max_new_tokens=8, do_sample=False)
    alone = model.generate(**tokenizer("x", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    find["left padding changes nothing"] = torch.equal(batch[0], made[0]) and torch.equal(batch[1, -9:], alone[0, -9:])
    padded = model(**both).logits
    find["padded logits are those alone"] = float((padded[0] - logits[0]).abs().max()) < 1e-5
    beams = model.generate(**prompt, max_new_tokens=4, num_beams=3, do_sample=False)
    find["beams run"] = beams.shape == (1, prompt.input_ids.shape[1] + 4)
    first = model(prompt.input_ids[:, :4], use_cache=True)
    second = model(prompt.input_ids[:, 4:], past_key_values=first.past_key_values)
    pieces = torch.cat([first.logits, second.logits], dim=1)
    find["pieces equal the whole"] = float((pieces - logits).abs().max()) < 1e-5
    last = model(**prompt, logits_to_keep=1).logits
    find["last logits alone"] = last.shape[1] == 1 and float((last - logits[:, -1:]).abs().max()) < 1e-5

loss = model(**prompt, labels=prompt.input_ids).loss
loss.backward()
find["loss is that of the next token"] = abs(float(loss) - float(expected["loss"])) < 1e-5
find["every parameter has a gradient"] = all(parameter.grad is not None for parameter in model.parameters())

model.save_pretrained(f"{here}-again")
tokenizer.save_pretrained(f"{here}-again")
find["saved and loaded again"] = equal(load(f"{here}-again").state_dict(), weights)
half = load(here, dtype=torch.bfloat16)
kept = {name for name, parameter in half.named_parameters() if parameter.dtype == torch.float32}
constants = {name for name in weights if name.endswith(("A_log", "dt_bias", ".D"))}
find["gate constants stay float32"] = kept == constants != set()
with torch.no_grad():
    near = half(**prompt).logits
find["bfloat16 is near"] = near.dtype == torch.float32 and float((near - logits).abs().max()) < 0.1

mixed = load(hybrid)
made = mixed.generate(**prompt, max_new_tokens=8, do_sample=False)
find["hybrid text is archsearch's"] = torch.equal(made, expected["hybrid"])
batch = mixed.generate(**both, max_new_tokens=8, do_sample=False)
alone = mixed.generate(**tokenizer("x", return_tensors="pt"), max_new_tokens=8, do_sample=False)
same = torch.equal(batch[0], made[0]) and torch.equal(batch[1, -9:], alone[0, -9:])
find["left padding changes nothing in a hybrid"] = same
beams = mixed.generate(**both, max_new_tokens=4, num_beams=3, do_sample=False)
alone = mixed.generate(**prompt, max_new_tokens=4, num_beams=3, do_sample=False)
find["padding changes no beam of a hybrid"] = torch.equal(beams[0], alone[0])

os.chdir(here)
card = open("README.md", encoding="utf-8").read()
(snippet,) = [each for each in re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL) if "transformers" in each]
exec(compile(snippet, "README.md", "exec"), {"print": lambda *_: None})
find["snippet of the card runs"] = True
print(json.dumps(find))
"""
FINDINGS = (
    "reload is bit-exact",
    "logits are archsearch's",
    "tokens are bytes",
    "tokenizer goes there and back",
    "greedy text is archsearch's",
    "left padding changes nothing",
    "padded logits are those alone",
    "beams run",
    "pieces equal the whole",
    "last logits alone",
    "loss is that of the next token",
    "every parameter has a gradient",
    "saved and loaded again",
    "gate constants stay float32",
    "bfloat16 is near",
    "hybrid text is archsearch's",
    "left padding changes nothing in a hybrid",
    "padding changes no beam of a hybrid",
    "snippet of the card runs",
)


def trained(module: Module) -> LanguageModel:
    torch.manual_seed(5)
    assert module.model is not None
    made = LanguageModel(module.rule, module.model, module.layer, module.vocabulary, "torch").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return made


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    folder = tmp_path_factory.mktemp("hub")
    prompt = torch.tensor([[256, *b"def main("]])
    speaker, hybrid = trained(SPEAKER), trained(HYBRID)
    with torch.no_grad():
        logits = speaker(prompt)
    expected = {
        "logits": logits,
        "generated": generate(speaker, prompt, 8),
        "hybrid": generate(hybrid, prompt, 8),
        "loss": torch.nn.functional.cross_entropy(logits[0, :-1], prompt[0, 1:]),
    }
    save_file(expected, folder / "expected.safetensors")
    homes = [
        export_module(module, made.state_dict(), folder / module.name)
        for module, made in ((SPEAKER, speaker), (HYBRID, hybrid))
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-P", "-c", SCRIPT, *map(str, homes), str(folder / "expected.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("finding", FINDINGS)
def test_transformers_finds(finding: str, found: dict[str, bool]) -> None:
    assert found[finding]


def test_nothing_else_was_found(found: dict[str, bool]) -> None:
    assert set(found) == set(FINDINGS)
