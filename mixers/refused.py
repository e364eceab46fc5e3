"""Published updates that are no rule of this language, each with the reason. A table: nothing here runs.

Either the state enters in a way that is not affine, or the transition is no product of diagonal and rank-one factors,
or the memory is not one matrix a head. What is a layer of a model's pattern instead says so.
"""

from __future__ import annotations

from collections.abc import Mapping

_PATTERN = "no rule but a layer of its own: name it in model.pattern, {0!r}"
_NONLINEAR = "not affine in the state: {0}"

REFUSED: Mapping[str, str] = {
    "attention": _PATTERN.format("attention"),
    "sliding_window": _PATTERN.format("window"),
    "mla": _PATTERN.format("mla"),
    "mamba": _PATTERN.format("mamba"),
    "s6": _PATTERN.format("mamba"),
    "griffin": _PATTERN.format("griffin"),
    "rg_lru": _PATTERN.format("griffin"),
    "momentum_delta_net": "its two states decay together by [[alpha, -beta mu], [0, mu]], a block that changes with the"
    " token; a decay of the normal form is diagonal (2605.05838)",
    "gated_oja": "it recalls at the value and reads at the key's side, o = R q of R = S^T; a read of the normal form is"
    " S^T q",
    "mesa_net": _NONLINEAR.format("its read solves (H + Lambda) x = q of the state H anew at each token"),
    "gated_kalman_net": _NONLINEAR.format("its read solves a ridge system of the state at each token (2511.21016)"),
    "log_linear": "it keeps a state for each power of two of the past, log T of them, not one (2506.04761)",
    "gsa": "it is two scans with a softmax between them: what the second writes depends on the first one's state",
    "abc": "it is two scans with a softmax between them: what the second writes depends on the first one's state",
    "complex_decay": "its decay turns pairs of channels, which no diagonal of real numbers does (2607.11897)",
    "ttt_linear": _NONLINEAR.format(
        "the inner loss has a LayerNorm of S^T k; it is affine only while gradients stay frozen within a mini-batch"
    ),
    "ttt_mlp": _NONLINEAR.format("the memory is an MLP"),
    "titans": _NONLINEAR.format("the memory is an MLP, with momentum; a linear one is affine a chunk at a time"),
    "lact": _NONLINEAR.format("the memory is a SwiGLU whose weights take orthogonalised steps"),
    "atlas": _NONLINEAR.format("it minimises over a window with orthogonalised steps (2505.23735)"),
    "lattice": _NONLINEAR.format("each slot of S is kept on the unit sphere (2504.05646)"),
    "m2rnn": _NONLINEAR.format("tanh acts on S at each token (2603.14360)"),
    "sane": _NONLINEAR.format("tanh acts on S at each token (2608.22354)"),
    "slstm": _NONLINEAR.format("its gates are made of the state of the token before (2405.04517)"),
    "residual_delta_net": _NONLINEAR.format("the second state is written by a clipped residual (2509.25223)"),
}
"""By the name that a user would try."""
