"""Kernels that others wrote by hand, timed beside ours where they are installed: what each computes, how it is called.

A peer computes the rule itself; a proxy computes something whose work is like the rule's, where nobody wrote that. All
take [B, T, H, K] by keyword and use K ** -0.5 on the read, as ours do; none is asked for its final state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, cast

import torch
from torch import Tensor

from archsearch.dsl import Rule
from archsearch.kernels.bench.case import Case
from archsearch.kernels.bench.measure import Role

Operands = Mapping[str, Tensor]


def _as_they_are(tensors: Operands) -> Operands:
    return tensors


@dataclass(frozen=True, slots=True)
class Peer:
    """A function of an installed package, and the rule whose operands, once `prepared`, it takes.

    `rows` outputs a token, the last of which is the token's. `checked`: whether its values must be those of the rule,
    `gradients` whether its gradients too. `forced` is set in a module of the package before the call, for the reason
    in `remark`. `environment` picks the path. `tuned`: whether Triton's autotuner chooses among variants.
    """

    rule: str
    package: str
    module: str
    function: str
    operands: tuple[str, ...]
    role: Role = Role.PEER
    prepared: Callable[[Operands], Operands] = _as_they_are
    constants: tuple[tuple[str, int], ...] = ()
    rows: int = 1
    checked: bool = True
    gradients: bool = True
    forced: tuple[str, str, bool] | None = None
    environment: tuple[tuple[str, str], ...] = ()
    tuned: bool = True
    remark: str = ""

    def call(self, tensors: Operands) -> Tensor:
        """Its output of prepared operands, [B, rows T, H, V]."""
        function = getattr(import_module(self.module), self.function)
        output, _ = cast("tuple[Tensor, Any]", function(output_final_state=False, **dict(self.constants), **tensors))
        return output

    def forward(self, tensors: Operands) -> Tensor:
        """The output [B, T, H, V] of the rule's own operands."""
        return self.call(self.prepared(tensors))[:, self.rows - 1 :: self.rows]

    def spread(self, slope: Tensor) -> Tensor:
        """The slope of the loss in `call`'s output: zero in all but a token's last row."""
        return _interleaved(*(torch.zeros_like(slope) for _ in range(self.rows - 1)), slope)

    @property
    def label(self) -> str:
        """Package, version and function."""
        return f"{self.package} {version(self.package)}, {self.function}"


def _interleaved(*rows: Tensor) -> Tensor:
    """[B, T, ...] each to [B, rows T, ...], a token's rows beside each other."""
    return torch.stack(rows, 2).flatten(1, 2)


def _product(tensors: Operands) -> Operands:
    """Two writes a token as a sequence of twice the length, decays apart."""
    k, v, beta = (_interleaved(tensors[f"{name}1"], tensors[f"{name}2"]) for name in ("k", "v", "beta"))
    return {"q": tensors["q"], "k": k, "v": v, "g": tensors["g"], "beta": beta}


def _erase_as_product(tensors: Operands) -> Operands:
    """An erase is a delta write of zero."""
    k = _interleaved(tensors["e"], tensors["k"])
    v = _interleaved(torch.zeros_like(tensors["v"]), tensors["v"])
    beta = _interleaved(tensors["gamma"], tensors["beta"])
    return {"q": tensors["q"], "k": k, "v": v, "g": tensors["g"], "beta": beta}


def _erase_as_token(tensors: Operands) -> Operands:
    """An erase as a token of its own, at which the state decays and nobody reads."""
    product = _erase_as_product(tensors)
    q = _interleaved(torch.zeros_like(tensors["q"]), tensors["q"])
    return {**product, "q": q, "g": _interleaved(tensors["g"], torch.zeros_like(tensors["g"]))}


def _feedback(tensors: Operands) -> Operands:
    """The address that recalls, p, meets the state before it decays."""
    recalled = tensors["k"] + tensors["lam"][..., None] * tensors["q"]
    p = (tensors["g"].exp()[..., None] * recalled).to(tensors["k"].dtype)
    return {**{name: tensors[name] for name in ("q", "k", "v", "g", "beta")}, "p": p}


FLA = "fla-core"
OWN = (("FLA_FLASH_QLA", "0"),)
"""Its own kernels, where flash_qla is installed too."""
GATED = ("q", "k", "v", "g", "beta")
PAIRS = (("num_householder", 2),)

PEERS = (
    Peer("gated_delta_net", FLA, "fla.ops.gated_delta_rule", "chunk_gated_delta_rule", GATED, environment=OWN),
    Peer("gated_delta_net", "flash-qla", "flash_qla", "chunk_gated_delta_rule", GATED, tuned=False),
    Peer("delta_net", FLA, "fla.ops.delta_rule", "chunk_delta_rule", ("q", "k", "v", "beta")),
    Peer(
        "simple_gla",
        FLA,
        "fla.ops.simple_gla",
        "chunk_simple_gla",
        ("q", "k", "v", "g"),
        gradients=False,
        forced=("fla.ops.common.chunk_o", "TRITON_ABOVE_3_7_1", True),
        remark="its refusal of the backward on Hopper (its #640) lifted, gradients unchecked",
    ),
    Peer("gla", FLA, "fla.ops.gla", "chunk_gla", ("q", "k", "v", "g")),
    Peer("kda", FLA, "fla.ops.kda", "chunk_kda", GATED),
    Peer("gdn2", FLA, "fla.ops.gdn2", "chunk_gdn2", ("q", "k", "v", "g", "b", "w")),
    Peer(
        "gated_delta_product",
        FLA,
        "fla.ops.gated_delta_product",
        "chunk_gated_delta_product",
        ("q", "g", "k1", "v1", "beta1", "k2", "v2", "beta2"),
        prepared=_product,
        constants=PAIRS,
    ),
    Peer(
        "eda_scalar",
        FLA,
        "fla.ops.gated_delta_product",
        "chunk_gated_delta_product",
        ("q", "k", "v", "e", "g", "beta", "gamma"),
        Role.PROXY,
        _erase_as_product,
        PAIRS,
        remark="erases as writes of zero",
    ),
    Peer(
        "eda",
        FLA,
        "fla.ops.kda",
        "chunk_kda",
        ("q", "k", "v", "e", "g", "beta", "gamma"),
        Role.PROXY,
        _erase_as_token,
        rows=2,
        remark="erases as tokens of their own",
    ),
    Peer(
        "q_delta",
        FLA,
        "fla.ops.comba",
        "chunk_comba",
        ("q", "k", "v", "g", "beta", "lam"),
        Role.PROXY,
        _feedback,
        checked=False,
        remark="p = e^g (k + lam q), values unchecked",
    ),
)


def peers_of(rule: Rule) -> tuple[Peer, ...]:
    """The installed peers of a rule, by the rule's name and operands."""
    return tuple(
        peer
        for peer in PEERS
        if peer.rule == rule.name and set(peer.operands) == set(rule.operands) and _installed(peer)
    )


def why_no_peers(case: Case) -> str | None:
    """The reason why no peer is timed; None where there is one."""
    if case.device.type != "cuda":
        return "peers run on a CUDA device only"
    installed = any(_installed(peer) for peer in PEERS)
    return None if installed else "no peer is installed (pip install flash-linear-attention flash-qla)"


def _installed(peer: Peer) -> bool:
    return find_spec(peer.module.partition(".")[0]) is not None
