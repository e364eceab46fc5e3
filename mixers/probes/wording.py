"""What each quantity is called on a page, what it means, and how its curves are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from archsearch.mixers.probes.quantities import Name
from archsearch.report.scales import Axis

PERCENT = {
    "share_outside",
    "key_energy_inside",
    "decay",
    "delta",
    "erase",
    "delta_where_slow",
    "erase_where_slow",
    "lost_at_the_end",
    "written",
    "decay_share",
    "erase_share",
    "delta_share",
    "write_share",
    "decay_largest",
    "erase_largest",
    "delta_largest",
    "write_largest",
    "by_decay",
    "by_erase",
    "by_delta",
    "share_negative",
    "share_complex",
    "dead_channels",
}
"""Figures that are shares of 1."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing: curves by name over common axes. references: (y, label) of dashed lines."""

    curves: tuple[str, ...]
    x: Axis
    y: Axis
    caption: str
    stepped: bool = False
    references: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """A section. headline: the figure that stands at the head of the page as `tile`, if any."""

    title: str
    meaning: str
    panels: tuple[Panel, ...] = ()
    headline: str = ""
    tile: str = ""


DENSITY = Axis("density", include=(0.0,))
DISTANCE = Axis("tokens since it was written", log=True)

STORIES = {
    Name.CONTRACTION: Story(
        "Contraction",
        "A row that recalls multiplies its error at the residual address x by 1 - b, b the product of what it writes "
        "along and what it reads along, strength included: beta k.x of a delta step, gamma e.e of an erase. Inside "
        "(0, 2) the error shrinks; outside it does not. Small steps change little (Figure 3 of arXiv 2606.08804).",
        (Panel(("step",), Axis("step b"), DENSITY, "the step of every token", stepped=True),),
        "share_outside",
        "of recalls outside (0, 2)",
    ),
    Name.DRIFT: Story(
        "Drift",
        "How far target and prediction move between neighbouring tokens: |z(t) - z(t-1)|, |S'(x(t) - x(t-1))| with the "
        "state before the token, and the size of their difference. A prediction that moves little leaves the "
        "residual to the target (Figure 3 of arXiv 2606.08804).",
        tuple(
            Panel((name,), Axis(f"{name} drift"), DENSITY, f"{name} drift of every token", stepped=True)
            for name in ("target", "prediction", "residual")
        ),
    ),
    Name.READOUT: Story(
        "Key and query readout",
        "The cosine between what the query and what the write key read from the state before the token. Near 1 the "
        "query would find what the key already found; near 0 a residual through the query adds something new "
        "(Figure 2 of arXiv 2606.08804).",
        (Panel(("cosine",), Axis("cosine"), DENSITY, "cosine of the two reads", stepped=True),),
        "mean",
        "mean cosine of key and query read",
    ),
    Name.ENERGY: Story(
        "Energy of the readouts",
        "Principal components of the query reads: the share of their variance in the first r, and the share of the "
        "key reads' energy in the same space. The gap is what only the key reads (Figure 2 of arXiv 2606.08804).",
        (
            Panel(
                ("query_variance", "key_energy"),
                Axis("components r"),
                Axis("share inside", percent=True, include=(0.0, 1.0)),
                "variance of the query reads and energy of the key reads in the first r components",
            ),
        ),
    ),
    Name.GATES: Story(
        "Gate shares",
        "How much each gate could take: 1 - mean decay, and the mean decay times the strengths of the rows that "
        "recall, normalised to 1. A budget, not what was removed. Slow: tokens with a mean decay of at least 0.9. The "
        "paper of EDA reports 35.4, 31.8 and 32.8 % for decay, delta and erase, 69.1 % erase where slow (arXiv "
        "2606.26560, section 4.5).",
        (
            Panel(
                ("decay", "delta", "erase"),
                Axis("mean decay of the token"),
                Axis("share", percent=True, include=(0.0, 1.0)),
                "shares by the token's mean decay",
            ),
        ),
    ),
    Name.COLLATERAL: Story(
        "Collateral change",
        "The relative change of the readout by an erase, |o after - o before| / |o before|, for its learned address "
        "and for others of the same length in its place, with the rule's own states and gates. The paper of EDA has "
        "0.064 learned, 0.115 with heads shuffled, 0.143 random, 0.223 at the write key (arXiv 2606.26560, Figure 2).",
        (),
        "learned",
        "relative change of the readout by an erase",
    ),
    Name.GEOMETRY: Story(
        "Address geometry",
        "Cosines between a token's addresses; random directions have a mean size of sqrt(2 / (pi K)). The paper of EDA "
        "reports 0.105 for erase and key against 0.071 at random in 128 dimensions (arXiv 2606.26560, Figure 2).",
        (Panel(("cosine",), Axis("cosine"), DENSITY, "cosine of the two addresses", stepped=True),),
    ),
    Name.UPDATES: Story(
        "Size and rank of an update",
        "Frobenius norms of what decay, erase and write change, and of the whole change, over the norm of the state "
        "before the token; the rank of the whole change counts singular values above 1e-4 of the largest.",
        (
            Panel(
                ("singular_values",),
                Axis("singular value"),
                Axis("over the largest", include=(0.0,)),
                "singular values of S(t) - S(t-1), mean over sampled tokens",
            ),
        ),
        "all_median",
        "of the state changes with a token (median norm ratio)",
    ),
    Name.READABILITY: Story(
        "Whether an old token can still be read",
        "The state is read at the write address of earlier tokens and compared with the value that they wrote: cosine, "
        "relative error, the projection on the value over what it was at once, and the share of tokens below a tenth "
        "of it, which count as lost, whichever step took them.",
        (
            Panel(
                ("cosine",), DISTANCE, Axis("cosine", include=(0.0, 1.0)), "cosine of what is read and what was written"
            ),
            Panel(("kept",), DISTANCE, Axis("kept", include=(0.0, 1.0)), "projection on the value over that at once"),
            Panel(("error",), DISTANCE, Axis("relative error", include=(0.0,)), "relative error, median over tokens"),
            Panel(
                ("lost",),
                DISTANCE,
                Axis("lost", percent=True, include=(0.0, 1.0)),
                "share of tokens that are lost",
            ),
        ),
        "lost_at_the_end",
        "of followed tokens lost by the end",
    ),
    Name.ERASURE: Story(
        "What took it",
        "The projection of every followed token changes step by step until it is lost. Shares of all that was taken, "
        "and of the single largest takers, by cause: decay, erase (a row without a target), delta (the recall of a row "
        "that writes) and write (another value on top).",
        (),
        "distance_when_lost",
        "tokens until a followed token is lost (median)",
    ),
    Name.REMAINING: Story(
        "What is left of a token's own write",
        "The write alone, carried through all later tokens and read at its own address: 1 at first. Unlike what can be "
        "read there, it holds nothing that other tokens wrote since. Half gone: tokens until it is below 0.5. By "
        "decay, erase and delta: shares of all that was taken from it.",
        (Panel(("left",), DISTANCE, Axis("left", include=(0.0, 1.0)), "what is left of the write, mean over tokens"),),
        "half_gone_after",
        "tokens until half of a write is gone (median)",
    ),
    Name.TRANSITION: Story(
        "Transition spectrum",
        "Eigenvalues and largest singular value of what one token does to a state, at sampled tokens, and of products "
        "over consecutive tokens. Norms that stay above 1 are an instability; negative and complex eigenvalues let a "
        "state track parity and rotations.",
        (
            Panel(
                ("product_norm", "product_norm_most"),
                Axis("tokens in a row", log=True),
                Axis("largest singular value", log=True),
                "largest singular value of products of tokens, mean and most over windows",
                references=((1.0, "contraction"),),
            ),
        ),
        "norm_most",
        "largest singular value of one token",
    ),
    Name.HEALTH: Story(
        "State health",
        "The norm of the state, its effective rank (the exponential of the entropy of its singular values), entries "
        "that are no numbers, and channels whose decay factor is below 1e-3.",
        (
            Panel(("norm",), Axis("token"), Axis("|S|", include=(0.0,)), "norm of the state, mean over sequences"),
            Panel(
                ("effective_rank",),
                Axis("token"),
                Axis("effective rank", include=(0.0,)),
                "effective rank of the state",
            ),
        ),
        "effective_rank_last",
        "effective rank of the state at the end",
    ),
    Name.MEMORY: Story(
        "Memory length",
        "1 / (1 - alpha) in tokens, alpha the decay factor: median and 90th percentile over tokens and channels.",
        (
            Panel(
                ("channels",),
                Axis("channels, by memory", percent=True, include=(0.0, 1.0)),
                Axis("tokens", log=True),
                "median memory length of each channel",
            ),
        ),
        "median",
        "tokens a channel remembers (median)",
    ),
}
