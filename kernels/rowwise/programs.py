"""The kernels of `calls`. Legend: T tokens, C channels, W taps of a filter, V words; BT, BC, BV of a block.

Products and sums are float32, results are rounded once.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def convolve(
    x, weight, bias, y, sequences, tokens, channels, x_replica, x_sequence, x_token, y_replica, y_sequence, y_token,
    filters, W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y[g, s, t, c] = sum_w weight[g, c, w] x[g, s, t - W + 1 + w, c] + bias[g, c]; before its first token x is 0.

    Each of x and y has its own steps from replica to replica g, sequence to sequence s, token to token t; filters: from
    one replica's filters to the next one's.
    """
    n = tl.program_id(0)
    g, s = (n // sequences).to(tl.int64), (n % sequences).to(tl.int64)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    token = tl.program_id(2) * BT + tl.arange(0, BT)
    there = column < channels
    mask = (token < tokens)[:, None] & there[None, :]
    own = g * filters + column
    total = tl.zeros((BT, BC), tl.float32)
    if bias is not None:
        total += tl.load(bias + own, mask=there, other=0.0).to(tl.float32)[None, :]
    rows = x + g * x_replica + s * x_sequence + column[None, :]
    for w in tl.static_range(W):
        tap = tl.load(weight + own * W + w, mask=there, other=0.0).to(tl.float32)
        source = token - (W - 1) + w
        within = mask & (source >= 0)[:, None]
        total += tap[None, :] * tl.load(rows + source[:, None] * x_token, mask=within, other=0.0).to(tl.float32)
    place = g * y_replica + s * y_sequence + token[:, None] * y_token + column[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=mask)


@triton.jit
def convolve_back(
    x, weight, d_y, d_x, d_weight, sequences, tokens, channels,
    x_replica, x_sequence, x_token, y_replica, y_sequence, y_token, d_replica, d_sequence, d_token, filters,
    W: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """d_x[g, s, t, c] = sum_w weight[g, c, w] d_y[g, s, t + W - 1 - w, c].

    d_weight [g, s, filters, W] float32, of each sequence apart. x, d_y, d_x have steps of their own, as in `convolve`.
    """
    n = tl.program_id(0)
    g, s = (n // sequences).to(tl.int64), (n % sequences).to(tl.int64)
    column = tl.program_id(1) * BC + tl.arange(0, BC)
    there = column < channels
    own = g * filters + column
    found, taps = (), ()
    for w in tl.static_range(W):
        found += (tl.zeros((BT, BC), tl.float32),)
        taps += (tl.load(weight + own * W + w, mask=there, other=0.0).to(tl.float32),)
    rows = x + g * x_replica + s * x_sequence + column[None, :]
    slopes = d_y + g * y_replica + s * y_sequence + column[None, :]
    results = d_x + g * d_replica + s * d_sequence + column[None, :]
    for i in range(tl.cdiv(tokens, BT)):
        row = i * BT + tl.arange(0, BT)
        mask = (row < tokens)[:, None] & there[None, :]
        given = tl.load(rows + row[:, None] * x_token, mask=mask, other=0.0).to(tl.float32)
        total = tl.zeros((BT, BC), tl.float32)
        sums = ()
        for w in tl.static_range(W):
            token = row + (W - 1 - w)
            within = (token < tokens)[:, None] & there[None, :]
            slope = tl.load(slopes + token[:, None] * y_token, mask=within, other=0.0).to(tl.float32)
            total += slope * taps[w][None, :]
            sums += (found[w] + slope * given,)
        found = sums
        tl.store(results + row[:, None] * d_token, total.to(d_x.dtype.element_ty), mask=mask)
    cell = (n.to(tl.int64) * filters + column) * W
    for w in tl.static_range(W):
        tl.store(d_weight + cell + w, tl.sum(found[w], 0), mask=there)


@triton.jit
def cross_entropy(logits, answers, losses, logs, words, IGNORED: tl.constexpr, BV: tl.constexpr):
    """losses [rows] in nats, 0 where the answer is IGNORED; logs: of the sum of exponentials of a row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BV)
    largest = tl.full((BV,), float("-inf"), tl.float32)
    total = tl.zeros((BV,), tl.float32)
    for start in range(0, words, BV):
        x = tl.load(logits + row * words + start + column, mask=start + column < words, other=float("-inf"))
        x = x.to(tl.float32)
        above = tl.maximum(largest, x)
        shift = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(largest - shift) + tl.exp(x - shift)
        largest = above
    most = tl.max(largest, 0)
    log = most + tl.log(tl.sum(total * tl.exp(largest - most), 0))
    answer = tl.load(answers + row)
    counts = answer != IGNORED
    chosen = tl.load(logits + row * words + tl.where(counts, answer, 0)).to(tl.float32)
    tl.store(logs + row, log)
    tl.store(losses + row, tl.where(counts, log - chosen, 0.0))


@triton.jit
def cross_entropy_back(logits, answers, logs, d_losses, d_logits, words, IGNORED: tl.constexpr, BV: tl.constexpr):
    """d_logits = (softmax - 1 at the answer) d_loss."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    mask = column < words
    answer = tl.load(answers + row)
    slope = tl.where(answer == IGNORED, 0.0, tl.load(d_losses + row).to(tl.float32))
    x = tl.load(logits + row * words + column, mask=mask, other=0.0).to(tl.float32)
    share = tl.exp(x - tl.load(logs + row))
    found = tl.where(answer == IGNORED, 0.0, (share - tl.where(column == answer, 1.0, 0.0)) * slope)
    tl.store(d_logits + row * words + column, found.to(d_logits.dtype.element_ty), mask=mask)


@triton.jit
def gated_norm(
    o, gate, weight, y, rows, group, width, eps,
    GATE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """y = o / rms(o) * weight[g] * curve(gate), row by row of `width` numbers; g = row // group. gate None: no gate."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, BN)
    mask = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    x = tl.load(o + place, mask=mask, other=0.0).to(tl.float32)
    rate = tl.rsqrt(tl.sum(x * x, 1) / width + eps)
    w = tl.load(weight + (row // group)[:, None] * width + column[None, :], mask=mask, other=0.0).to(tl.float32)
    found = x * rate[:, None] * w
    if gate is not None:
        z = tl.load(gate + place, mask=mask, other=0.0).to(tl.float32)
        s = tl.sigmoid(z)
        found *= s * z if GATE == "swish" else s
    tl.store(y + place, found.to(y.dtype.element_ty), mask=mask)


@triton.jit
def gated_norm_back(
    o, gate, weight, d_y, d_o, d_gate, d_weight, rows, group, width, eps, pieces,
    GATE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Program (g, piece) takes rows of group g; d_weight [groups, pieces, width] float32, of each piece apart."""
    g, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BN)
    there = column < width
    w = tl.load(weight + g * width + column, mask=there, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((BN,), tl.float32)
    for start in range(piece * BR, group, pieces * BR):
        inside = start + tl.arange(0, BR)
        row = g * group + inside
        mask = (inside < group)[:, None] & there[None, :]
        place = row[:, None] * width + column[None, :]
        x = tl.load(o + place, mask=mask, other=0.0).to(tl.float32)
        slope = tl.load(d_y + place, mask=mask, other=0.0).to(tl.float32)
        rate = tl.rsqrt(tl.sum(x * x, 1) / width + eps)[:, None]
        normal = x * rate
        if gate is not None:
            z = tl.load(gate + place, mask=mask, other=0.0).to(tl.float32)
            s = tl.sigmoid(z)
            bend = s * (1 + z * (1 - s)) if GATE == "swish" else s * (1 - s)
            tl.store(d_gate + place, (slope * normal * w * bend).to(d_gate.dtype.element_ty), mask=mask)
            slope *= s * z if GATE == "swish" else s
        total += tl.sum(slope * normal, 0)
        inner = slope * w
        turned = (inner - normal * (tl.sum(inner * normal, 1) / width)[:, None]) * rate
        tl.store(d_o + place, turned.to(d_o.dtype.element_ty), mask=mask)
    tl.store(d_weight + (g * pieces + piece) * width + column, total, mask=there)


@triton.jit
def adamw(
    gradients, weights, mean, square, decaying, shrink, beta1, beta2, step_size, root, epsilon, fade,
    size, BLOCK: tl.constexpr,
):  # fmt: skip
    """A step on rows of `size` numbers in place; shrink .. fade are of a row, decaying [size] is 1 where fade acts."""
    row = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    at = row.to(tl.int64) * size + place
    g = tl.load(gradients + at, mask=mask, other=0.0) * tl.load(shrink + row)
    m = tl.load(mean + at, mask=mask, other=0.0)
    v = tl.load(square + at, mask=mask, other=0.0)
    w = tl.load(weights + at, mask=mask, other=0.0)
    b1, b2 = tl.load(beta1 + row), tl.load(beta2 + row)
    m += (g - m) * (1 - b1)
    v = v * b2 + g * g * (1 - b2)
    w *= 1 - tl.load(fade + row) * tl.load(decaying + place, mask=mask, other=0.0)
    w -= tl.load(step_size + row) * m / (tl.sqrt(v) / tl.load(root + row) + tl.load(epsilon + row))
    tl.store(mean + at, m, mask=mask)
    tl.store(square + at, v, mask=mask)
    tl.store(weights + at, w, mask=mask)
