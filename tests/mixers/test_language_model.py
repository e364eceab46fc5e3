"""The language model: pieces equal the whole, seeds decide everything, counts are exact, text comes out."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from archsearch.dsl import Rule
from archsearch.errors import ConfigError, OperandError
from archsearch.kernels.call import Result
from archsearch.lowering import lower
from archsearch.lowering.cost import Sizes, cost
from archsearch.mixers.layer.attention import Attention
from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.layer.options import Layer, LowRank, Projection, Static
from archsearch.mixers.models import counts
from archsearch.mixers.models.generation import generate
from archsearch.mixers.models.language_model import LanguageModel
from archsearch.mixers.models.options import Model
from archsearch.mixers.zoo import rules

VOCABULARY = 40
HYBRID = Model(width=32, heads=2, layers=4, pattern=("conv", "rule", "rule", "attention"))
SMALL = Model(width=32, heads=2, layers=2)
PARTNERS = Model(width=32, heads=2, layers=4, pattern=("window", "rule", "mla", "attention"), window=4)


def language_model(name: str, model: Model = SMALL, layer: Layer | None = None) -> LanguageModel:
    return LanguageModel(rules[name], model, layer, VOCABULARY).double()


def tokens(batch: int = 2, length: int = 17) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length))


@pytest.mark.parametrize(
    "model", [HYBRID, PARTNERS, SMALL, Model(width=32, heads=2, layers=2, mlp_ratio=0, tie_embeddings=False)]
)
@pytest.mark.parametrize("name", ["retnet", "eda", "mamba2"])
@torch.no_grad()
def test_pieces_of_any_length_equal_the_whole(name: str, model: Model) -> None:
    net, x = language_model(name, model), tokens()
    for cuts in ([0, 3, 3, 4, 5, 17], range(18)):
        cache = net.init_cache(2)
        pieces = [net(x[:, a:b], cache) for a, b in pairwise(cuts)]
        torch.testing.assert_close(torch.cat(pieces, 1), net(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("model", [HYBRID, PARTNERS])
@torch.no_grad()
def test_packed_sequences_equal_separate_ones_in_a_hybrid(model: Model) -> None:
    net, parts = language_model("retnet", model), [tokens(1, length) for length in (4, 0, 1, 9)]
    whole = net(torch.cat(parts, 1), cu_seqlens=torch.tensor([0, 4, 4, 5, 14]))
    torch.testing.assert_close(whole, torch.cat([net(part) for part in parts], 1), rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_past_does_not_depend_on_the_future() -> None:
    net, x = language_model("q_delta", HYBRID), tokens()
    other = torch.cat([x[:, :9], (x[:, 9:] + 1) % VOCABULARY], 1)
    torch.testing.assert_close(net(other)[:, :9], net(x)[:, :9], rtol=0, atol=1e-12)


def test_every_parameter_gets_a_gradient() -> None:
    net = language_model("eda_q_delta", HYBRID)
    nn.functional.cross_entropy(net(tokens()).flatten(0, 1), tokens().flatten()).backward()
    for path, parameter in net.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), path
        assert parameter.grad.abs().sum() > 0, path


@pytest.mark.parametrize("name", ["kda", "mamba2", "eda_q_delta"])
def test_gate_constants_survive_the_models_construction(name: str) -> None:
    """Each is what its source drew: A and dt in their ranges, biases and D where they start; marked, float32."""
    net = LanguageModel(rules[name], SMALL, None, VOCABULARY)
    constants = {path: p for path, p in net.named_parameters() if getattr(p, "_no_weight_decay", False)}
    kinds = {path.rpartition(".")[2] for path in constants}
    assert kinds >= {"A_log", "dt_bias"}
    for path, constant in constants.items():
        assert constant.dtype == torch.float32
        kind = path.rpartition(".")[2]
        if kind == "A_log":
            assert constant.min() >= 0 and constant.max() <= 2.7726
        elif kind == "dt_bias":
            steps = nn.functional.softplus(constant)
            assert steps.min() >= 1e-4 and steps.max() <= 0.1001
        elif kind == "D":
            assert torch.equal(constant, torch.ones_like(constant))
        else:
            assert kind == "bias" and constant.unique().tolist() in ([-2.0], [pytest.approx(-0.8)])


def test_a_mixer_in_a_model_starts_as_the_mixer_alone() -> None:
    torch.manual_seed(4)
    net = LanguageModel(rules["eda"], SMALL, None, VOCABULARY)
    alone = Mixer(rules["eda"], 32, 2, stream=stream_of(4) / 1)
    for path, value in alone.state_dict().items():
        assert torch.equal(value, net.state_dict()[f"blocks.1.mixer.{path}"]), path


def stream_of(seed: int) -> Any:
    from archsearch.mixers.layer.initialisation import Stream

    torch.manual_seed(seed)
    return Stream.fresh()


def test_projections_and_embeddings_start_with_the_models_deviation() -> None:
    net = LanguageModel(rules["gdn"], Model(width=64, heads=2, layers=2, initial_std=0.05), None, 500)
    for path in ("embedding.weight", "blocks.0.mixer.projection", "blocks.1.mlp.up", "blocks.1.mlp.down"):
        assert net.get_parameter(path).std().item() == pytest.approx(0.05, rel=0.05), path


def test_a_seed_decides_every_weight_and_output() -> None:
    outputs: list[Tensor] = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        net = LanguageModel(rules["eda"], HYBRID, None, VOCABULARY)
        outputs.append(net(torch.arange(12)[None]))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])


def test_state_dict_holds_plain_tensors_that_no_two_names_share() -> None:
    state = LanguageModel(rules["eda"], HYBRID, None, VOCABULARY).state_dict()
    assert all(type(value) is Tensor and value.is_contiguous() for value in state.values())
    assert len({value.data_ptr() for value in state.values()}) == len(state)


def test_a_state_dict_brings_the_model_back() -> None:
    one, two, x = language_model("retnet", HYBRID), language_model("retnet", HYBRID), tokens()
    assert not torch.equal(one(x), two(x))
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x), two(x))


LAYERS = {
    "paper": None,
    "default": Layer(),
    "grouped": Layer(
        value_heads=4, expand_v=0.5, skip=True, conv=3, conv_bias=True, gate_projection=LowRank(3, bias=True)
    ),
    "bare": Layer(conv=0, output_gate="none"),
    "derived": Layer(operands={"q": Projection("k"), "k": Static()}),
}
CASES = [(name, "paper") for name in rules] + [("gdn2", other) for other in LAYERS] + [("delta_net", "derived")]


@pytest.mark.parametrize(("name", "layer"), CASES)
def test_counts_equal_live_tensors(name: str, layer: str) -> None:
    rule, options = rules[name], LAYERS[layer]
    for model in (
        HYBRID,
        PARTNERS,
        Model(width=32, heads=2, layers=1, mlp_ratio=0, tie_embeddings=False, conv_width=5),
    ):
        net = LanguageModel(rule, model, options, VOCABULARY)
        live = sum(parameter.numel() for parameter in net.parameters())
        assert live == net.parameter_count == counts.parameters(rule, model, options, VOCABULARY)
        assert net.state_bytes == counts.state_bytes(rule, model, options)
        cache = net.init_cache(3)
        net(tokens(3, 5), cache)
        assert sum(layer.nbytes for layer in cache) == 3 * counts.state_bytes(rule, model, options, length=5)


@pytest.mark.parametrize(("name", "layer"), CASES)
def test_flops_of_products_equal_what_torch_counts(name: str, layer: str) -> None:
    """All but the rule and attention's products of tokens with tokens, which torch counts as full squares."""
    net, length = LanguageModel(rules[name], HYBRID, LAYERS[layer], VOCABULARY), 8
    sizes = next(m.plan.sizes for m in net.modules() if isinstance(m, Mixer))
    for module in net.modules():
        if isinstance(module, Mixer):
            module.compiled = silent(module)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        net(tokens(1, length))
    squares = 4 * length * length * 32
    rule = cost(lower(rules[name]), Sizes(sizes.key, sizes.value, sizes.heads, sizes.value_heads)).recurrent_flops
    formula = net.flops_per_token(length) - 2 * rule - 4 * 32 * (length + 1) / 2
    assert formula * length == pytest.approx(counter.get_total_flops() - squares)


def silent(mixer: Mixer) -> Any:
    """In place of the rule: zeros of its output's shape."""
    sizes = mixer.plan.sizes

    def run(**operands: Any) -> Result:
        batch, length = operands["q"].shape[:2]
        return Result(torch.zeros(batch, length, sizes.value_heads, sizes.value), torch.zeros(0))

    return run


def test_counts_need_no_numbers() -> None:
    with torch.device("meta"):
        net = LanguageModel(rules["eda"], Model(width=4096, heads=32, layers=4), None, 50_000)
    assert net.embedding.weight.is_meta
    assert net.parameter_count == counts.parameters(rules["eda"], Model(width=4096, heads=32, layers=4), None, 50_000)


def test_the_pattern_is_repeated_over_the_layers() -> None:
    net = LanguageModel(
        rules["kda"], Model(width=32, heads=2, layers=5, pattern=("rule", "attention")), None, VOCABULARY
    )
    kinds = [type(block.mixer) for block in net.blocks]
    assert kinds == [Mixer, Attention, Mixer, Attention, Mixer]


@torch.no_grad()
def test_dropout_acts_in_training_only() -> None:
    net, x = language_model("delta_net", Model(width=32, heads=2, layers=1, dropout=0.5)), tokens()
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@torch.no_grad()
def test_logits_are_float32_under_autocast() -> None:
    net = LanguageModel(rules["eda"], HYBRID, None, VOCABULARY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(tokens())
    assert logits.dtype == torch.float32 and torch.isfinite(logits).all()


def test_training_on_one_batch_lowers_the_loss_by_half() -> None:
    net, x = LanguageModel(rules["eda_q_delta"], SMALL, None, VOCABULARY), tokens(4, 24)
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(40):
        loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_greedy_text_is_what_whole_passes_would_choose() -> None:
    net, text = language_model("eda", HYBRID), tokens(2, 5)
    expected = text
    for _ in range(6):
        expected = torch.cat([expected, net(expected)[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(generate(net, text, 6), expected)
    assert net.training


def test_drawn_text_follows_its_generator_and_keeps_to_the_likeliest() -> None:
    net, prompt = language_model("gdn"), tokens(3, 4)

    def draw(seed: int, **options: Any) -> Tensor:
        return generate(net, prompt, 5, generator=torch.Generator().manual_seed(seed), **options)

    assert torch.equal(draw(1, temperature=1.0), draw(1, temperature=1.0))
    assert not torch.equal(draw(1, temperature=1.0), draw(2, temperature=1.0))
    assert torch.equal(draw(1, temperature=2.0, top_k=1), generate(net, prompt, 5))
    assert generate(net, prompt, 0).shape == (3, 4)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Model(pattern=()),
            "model.pattern must hold one or more of rule, attention, window, mla, mamba, griffin, conv; got ()",
        ),
        (
            lambda: Model(pattern=("rule", "softmax")),  # type: ignore[arg-type]
            "model.pattern must hold one or more of rule, attention, window, mla, mamba, griffin, conv; "
            "got ('rule', 'softmax')",
        ),
        (lambda: Model(layers=0), "model.layers must be >= 1; got 0"),
        (lambda: Model(width=16.0), "model.width must be a whole number >= 1; got 16.0"),  # type: ignore[arg-type]
        (
            lambda: LanguageModel(rules["eda"], None, None, 8),  # type: ignore[arg-type]
            "model must be a Model; got NoneType. Write Model(width=256, heads=4, ...)",
        ),
        (lambda: Model(dropout=1.0), "model.dropout must be in [0, 1); got 1.0"),
        (lambda: Model(mlp_ratio=-1.0), "model.mlp_ratio must be >= 0 (0: no MLP); got -1.0"),
        (lambda: LanguageModel(rules["eda"], SMALL, None, 0), "vocabulary must be a whole number of at least 1; got 0"),
        (lambda: Attention(30, 2), "attention needs heads of even width; got width=30, heads=2. Change one of them"),
        (
            lambda: generate(language_model("eda"), tokens(), 3, temperature=-1.0),
            "count and temperature must be >= 0 and top_k >= 1; got 3, -1.0, None",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(build: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: net(torch.zeros(2, 5)), "tokens must be int64 [B, T]; got torch.float32 [2, 5]"),
        (
            lambda net: net(torch.full((1, 3), net.vocabulary)),
            f"tokens must be in [0, {VOCABULARY}); got {VOCABULARY} to {VOCABULARY}",
        ),
        (lambda net: net(tokens(), cache=[]), "the cache must be of 4 layers; got 0. Use init_cache"),
        (lambda net: net(tokens()[0]), "tokens must be int64 [B, T]; got torch.int64 [17]"),
        (
            lambda net: generate(net, tokens(1, 0), 3),
            "the prompt must be int64 [B, T] with T >= 1; got [1, 0]. Give a first token",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(call: Any, message: str) -> None:
    with pytest.raises(OperandError) as caught:
        call(language_model("eda", HYBRID))
    assert str(caught.value) == message


def test_an_open_rule_is_refused_by_its_holes() -> None:
    from archsearch.dsl import delta_write, key, query, read, value
    from archsearch.errors import HoleError
    from archsearch.holes import uniform

    rule = Rule("open", delta_write(key("k"), value("v"), strength=uniform(0.0, 1.0, name="beta")), read(query("q")))
    with pytest.raises(HoleError, match="beta"):
        LanguageModel(rule, SMALL, None, VOCABULARY)
