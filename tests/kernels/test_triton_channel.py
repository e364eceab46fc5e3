"""Kernels of rules whose channels decay on their own, where decays are extreme and head sizes fill no block."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from archsearch import compile
from archsearch.dsl import Kind, Rule
from archsearch.kernels.conformance.made_up import RULES
from archsearch.kernels.triton import gradient_launch, launch, setup
from archsearch.kernels.triton.plan import NARROWEST, Problem, group_of, plan
from archsearch.lowering import NormalForm, lower
from archsearch.mixers.zoo import rules

NAMED: dict[str, Rule] = {rule.name: rule for rule in (*rules.values(), *RULES)}
CASES = ("kda", "gla", "gdn2", "eda", "signed_between", "three", "previous_per_channel")
"""One, two and four rows a token, every row at one place and at several, without residuals, with signs."""
LOGS = {"mild": (0.0, -0.01, -0.5, -1.0), "strong": (0.0, -0.01, -0.5, -50.0, -1e4, float("-inf"))}
"""Decays that a chunk's rows can grow by, and others."""
SIZES = {"B": 1, "T": 41, "H": 1, "HV": 1, "K": 60, "V": 20}


def drawn(form: NormalForm, seed: int, logs: tuple[float, ...]) -> dict[str, Tensor]:
    """Inputs in float64: unit addresses, strengths in (0, 1), log decays among `logs`."""
    chance = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for operand in form.operands:
        x = torch.randn([SIZES[dim] for dim in operand.shape.strip("[]").split(", ")], generator=chance).double()
        match operand.kind:
            case Kind.KEY | Kind.QUERY:
                x = torch.nn.functional.normalize(x, dim=-1)
            case Kind.LOG_DECAY:
                x = torch.tensor(logs, dtype=torch.float64)[torch.randint(len(logs), x.shape, generator=chance)]
            case Kind.SIGN:
                x = torch.where(x < 0, -1.0, 1.0).double()
            case Kind.GATE | Kind.CHANNEL_GATE:
                x = torch.sigmoid(x)
            case _:
                pass
        found[operand.name] = x
    return found


def differentiated(rule: Rule, backend: str, chunk: int | None, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output, state and the gradients of all operands but decays, whose own are not finite at -inf."""
    fixed = {operand.name for operand in lower(rule).operands if operand.kind in (Kind.LOG_DECAY, Kind.SIGN)}
    leaves = {name: x.clone().requires_grad_(name not in fixed) for name, x in given.items()}
    output, state = compile(rule, backend, chunk)(**leaves)  # type: ignore[arg-type]
    wanted = {name: x for name, x in leaves.items() if name not in fixed}
    total = (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum() + state.sum()
    gradients = torch.autograd.grad(total, list(wanted.values()))
    return {"output": output.detach(), "state": state.detach(), **dict(zip(wanted, gradients, strict=True))}


@pytest.mark.parametrize("logs", LOGS)
@pytest.mark.parametrize("chunk", [16, 32])
@pytest.mark.parametrize("name", CASES)
def test_decays_of_nothing_and_of_everything_agree_with_the_token_loop(
    name: str, chunk: int, logs: str, interpreted: torch.device
) -> None:
    rule = NAMED[name]
    given = drawn(lower(rule), seed=chunk, logs=LOGS[logs])
    expected = differentiated(rule, "reference", None, given)
    single = {key: x.float().to(interpreted) for key, x in given.items()}
    found = differentiated(rule, "triton", chunk, single)
    for key, value in expected.items():
        error = (found[key].double().cpu() - value).norm() / value.norm().clamp(min=1e-9)
        assert error < 1e-4, (name, key, error.item())


@pytest.fixture
def pairs_of_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One program looks at two chunks for strong decays."""

    def two(programs: int, processors: int) -> int:
        return 2

    setup.setup.cache_clear()
    monkeypatch.setattr(launch, "group_of", two)
    monkeypatch.setattr(gradient_launch, "group_of", two)
    yield
    setup.setup.cache_clear()


@pytest.mark.usefixtures("pairs_of_chunks")
@pytest.mark.parametrize("strong", [0, 1, 2])
def test_a_program_that_looks_at_several_chunks_finds_the_one_that_is_strong(
    strong: int, interpreted: torch.device
) -> None:
    rule = NAMED["kda"]
    given = drawn(lower(rule), seed=strong, logs=LOGS["mild"])
    given["g"][:, 16 * strong : 16 * strong + 16] *= 100
    expected = differentiated(rule, "reference", None, given)
    found = differentiated(rule, "triton", 16, {key: x.float().to(interpreted) for key, x in given.items()})
    for key, value in expected.items():
        error = (found[key].double().cpu() - value).norm() / value.norm().clamp(min=1e-9)
        assert error < 1e-4, (key, error.item())


@pytest.mark.parametrize(("programs", "group"), [(64, 1), (2111, 1), (2112, 2), (8192, 4), (1 << 20, 32)])
def test_groups_leave_programs_enough_where_every_chunk_is_strong(programs: int, group: int) -> None:
    assert group_of(programs, 264) == group
    assert group_of(programs, 0) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("keys", [8, 16, 32, 128])
def test_blocks_of_channels_are_never_narrower_than_what_is_known_to_be_right(keys: int, dtype: torch.dtype) -> None:
    problem = Problem(
        span=2,
        channel=True,
        residual=True,
        bonus=False,
        moved=2,
        key_tiles=3,
        value_tiles=1,
        divided=False,
        key_dim=keys,
        value_dim=64,
        tokens=512,
        lanes=8,
        packed=False,
        dtype=dtype,
        processors=132,
    )
    made = plan(problem, None)
    assert made.gradient_keys == NARROWEST <= made.solve_keys
