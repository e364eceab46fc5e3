"""Published rules that are no rule here, each with the reason. A name from this table is refused; nothing stands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotAffine:
    """A rule with a term that is not affine in S: `term` depends on S through `through`."""

    term: str
    through: str
    source: str

    def why(self, name: str) -> str:
        """The refusal in one line."""
        return (
            f"rule {name!r} is not affine in the state: {self.term} depends on S through {self.through}; "
            f"no backend runs it. Remove that term ({self.source})"
        )


@dataclass(frozen=True, slots=True)
class NotHere:
    """A rule that the language cannot say, though it may be affine in S: `reason`, and what to do `instead`."""

    reason: str
    instead: str
    source: str

    def why(self, name: str) -> str:
        """The refusal in one line."""
        return f"rule {name!r} is refused: {self.reason}. {self.instead} ({self.source})"


@dataclass(frozen=True, slots=True)
class OfAPattern:
    """No rule but a layer of its own, `entry` of a model's pattern."""

    entry: str
    source: str

    def why(self, name: str) -> str:
        """The refusal in one line."""
        return f"{name!r} is no rule but a layer: write {self.entry} in model.pattern ({self.source})"


REFUSED: Mapping[str, NotAffine | NotHere | OfAPattern] = {
    "attention": OfAPattern("attention", "softmax attention"),
    "window": OfAPattern("window", "softmax attention over the last model.window tokens"),
    "sliding_window": OfAPattern("window", "softmax attention over the last model.window tokens"),
    "mla": OfAPattern("mla", "multi-head latent attention, arXiv 2405.04434"),
    "mamba": OfAPattern("mamba", "Mamba-1, arXiv 2312.00752"),
    "mamba1": OfAPattern("mamba", "Mamba-1, arXiv 2312.00752"),
    "s6": OfAPattern("mamba", "Mamba-1, arXiv 2312.00752"),
    "griffin": OfAPattern("griffin", "RG-LRU in Griffin's recurrent block, arXiv 2402.19427"),
    "rg_lru": OfAPattern("griffin", "RG-LRU in Griffin's recurrent block, arXiv 2402.19427"),
    "conv": OfAPattern("conv", "a short convolution times a linear map, arXiv 2312.04927"),
    "ttt_linear": NotAffine("the written error", "a LayerNorm inside the inner loss", "arXiv 2407.04620"),
    "ttt_mlp": NotAffine("the written error", "the hidden layer of an MLP memory", "arXiv 2407.04620"),
    "titans": NotAffine("the gradient that is written", "the hidden layer of an MLP memory", "arXiv 2501.00663"),
    "lact": NotAffine("the update", "a SwiGLU memory and an orthogonalised step", "LaCT"),
    "atlas": NotAffine("the update", "the optimum over a window of tokens", "Omega rule, arXiv 2505.23735"),
    "lattice": NotAffine("every slot", "its projection on the unit sphere", "arXiv 2504.05646"),
    "muon_ssm": NotAffine("the update", "an orthogonalised momentum", "MuonSSM"),
    "m2rnn": NotAffine("the next state", "tanh", "arXiv 2603.14360"),
    "sane": NotAffine("the next state", "tanh", "arXiv 2608.22354"),
    "rla": NotAffine("the residual that is written", "a clip", "arXiv 2509.25223"),
    "rdn": NotAffine("the residual that is written", "a clip", "arXiv 2509.25223"),
    "residual_delta_net": NotAffine("the residual that is written", "a clip", "arXiv 2509.25223"),
    "slstm": NotAffine("every gate", "a product with what was read of S", "xLSTM, arXiv 2405.04517"),
    "q_delta_released": NotHere(
        "the released kernel of Q-Delta solves with K X^T where its recurrence needs X K^T, so that its result depends "
        "on the chunk size and is no recurrence at all",
        "q_delta is the paper's",
        "psmiz/Q-Delta, chunks of 64",
    ),
    "kalman_gain": NotHere(
        "its gain P k / (r + k.P k) needs the covariance P, a Riccati recursion over K x K matrices that no scan makes",
        "Bring the gain w as an operand: delta_write(w, v, residual=k)",
        "arXiv 2609.07816",
    ),
    "momentum_delta_net": NotHere(
        "its two states decay together by [[alpha, -beta mu], [0, mu]], a block that changes with the token and so has "
        "no basis in which it is diagonal, as a decay is here",
        "gated_delta_net is it without the momentum",
        "arXiv 2605.05838",
    ),
    "gated_oja": NotHere(
        "it decays value channels and recalls S v at a value, while a state is decayed and addressed by keys here",
        "Written for the transposed state it is kda with keys and values exchanged, but for the read",
        "flash-linear-attention, gated_oja_rule",
    ),
    "mesa_net": NotHere(
        "its read solves with a second state, (H + Lambda)^-1 q, token by token",
        "simple_gla makes both states; the solve is not a read",
        "flash-linear-attention, mesa_net",
    ),
    "gated_kalman_net": NotHere(
        "its read solves with a second state, (H + Lambda)^-1 q, token by token",
        "simple_gla makes both states; the solve is not a read",
        "arXiv 2511.21016",
    ),
    "complex_decay": NotHere(
        "its state is complex; decays are real here, with a sign",
        "ckda has signed decays, rotary addresses turn keys and queries",
        "arXiv 2607.11897",
    ),
    "log_linear": NotHere(
        "it keeps log2(T) states, of which every read sums all",
        "Use the rule that it is built on",
        "arXiv 2506.04761",
    ),
    "abc": NotHere(
        "it reads one state, takes a softmax, and reads a second one",
        "linear is one of its two passes",
        "ABC, arXiv 2110.02488",
    ),
    "gsa": NotHere(
        "it reads one state, takes a softmax, and reads a second one",
        "gla is one of its two passes",
        "GSA, arXiv 2409.07146",
    ),
    "raven": NotHere(
        "it reads one state, takes a softmax, and reads a second one",
        "gla is one of its two passes",
        "Raven, slots as in GSA",
    ),
    "performer": NotHere(
        "its feature map exp(w x - x.x / 2) of random w is none that a layer has",
        "linear_attention is its rule: call it with q and k mapped",
        "arXiv 2009.14794",
    ),
}
"""By the name under which each is known."""
