"""The mLSTM layer is that of its papers, and its gates start and end where they say."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from archsearch.mixers.layer.mixer import Mixer
from archsearch.mixers.zoo import rules

WIDTH, HEADS, DIM = 24, 3, 8


def layer_loop(mixer: Mixer, x: Tensor) -> Tensor:
    """2503.13427, section 2 with the cell of 2405.04517, Eqs. 19-27: token by token, head by head."""
    rows = dict(
        zip(
            [part.name for part in mixer.plan.parts] + ["gate"],
            mixer.projection.split([part.inputs for part in mixer.plan.parts] + [mixer.plan.gate_inputs]),
            strict=True,
        )
    )
    q, k, v, gate = ((x @ rows[name].T).unflatten(-1, (HEADS, DIM)) for name in ("q", "k", "v", "gate"))
    state = mixer.state_dict()
    forget = 15 * torch.tanh((x @ rows["g"].T + state["sources.g.bias"]) / 15)
    enter = 15 * torch.tanh((x @ rows["i"].T + state["sources.i.bias"]) / 15)
    batch, length, _ = x.shape
    c, n, m = (
        x.new_zeros(batch, HEADS, DIM, DIM),
        x.new_zeros(batch, HEADS, DIM),
        x.new_full((batch, HEADS), -torch.inf),
    )
    outputs: list[Tensor] = []
    for t in range(length):
        new = torch.maximum(F.logsigmoid(forget[:, t]) + m, enter[:, t])
        f, i = (F.logsigmoid(forget[:, t]) + m - new).exp(), (enter[:, t] - new).exp()
        m, key = new, k[:, t] / DIM**0.5
        c = f[..., None, None] * c + i[..., None, None] * v[:, t, :, :, None] * key[:, :, None]
        n = f[..., None] * n + i[..., None] * key
        divisor = torch.maximum((n * q[:, t]).sum(-1).abs(), (-m).exp())
        h = (c @ q[:, t, :, :, None])[..., 0] / divisor[..., None]
        h = h / (h.square().mean(-1, keepdim=True) + 1e-5).sqrt() * state["output.norm"]
        outputs.append((h * gate[:, t].sigmoid()).flatten(1) @ state["output.projection"].T)
    return torch.stack(outputs, 1)


def test_the_layer_is_the_papers() -> None:
    mixer, x = Mixer(rules["mlstm"], WIDTH, HEADS).double(), torch.randn(2, 19, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        mixer.get_parameter("sources.i.bias").add_(9.0)
        torch.testing.assert_close(mixer(x), layer_loop(mixer, x), rtol=0, atol=1e-10)


def test_gates_start_closed_to_what_enters_and_open_to_what_is_there() -> None:
    mixer = Mixer(rules["mlstm"], WIDTH, HEADS)
    assert mixer.get_parameter("sources.i.bias").tolist() == [-10.0] * HEADS
    assert mixer.get_parameter("sources.g.bias").tolist() == [3.0, 4.5, 6.0]
    with torch.no_grad():
        mixer.projection.mul_(1e6)
        made = mixer.operands(torch.randn(1, 30, WIDTH))
    assert made["i"].max() <= torch.tensor(15.0).exp() * 1.001 and made["i"].min() > 0
    assert made["g"].min() >= -15.001 and made["g"].max() <= 0


def test_huge_inputs_leave_no_nan_in_values_or_gradients() -> None:
    mixer, x = Mixer(rules["mlstm"], WIDTH, HEADS), 1e4 * torch.randn(1, 40, WIDTH)
    y = mixer(x)
    y.sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in mixer.parameters())
