"""The scans on a GPU: a program takes one sequence and a block of channels through time, BT tokens at once.

Legend: T tokens, C channels, N numbers of a state's channel, BT and BC of a block. Tensors lie as [B * T, C or N]; a
sequence is `tokens` rows, or those between two of `offsets`. What is beyond a sequence neither decays nor writes.
"""

# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# pyright: reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def stretched(decay_0, write_0, decay_1, write_1):
    """Two stretches of a recurrence as one."""
    return decay_0 * decay_1, decay_1 * write_0 + write_1


@triton.jit
def stretch(offsets, tokens, n):
    """First row of sequence n and the one after its last."""
    if offsets is None:
        start = n.to(tl.int64) * tokens
        end = start + tokens
    else:
        start = tl.load(offsets + n).to(tl.int64)
        end = tl.load(offsets + n + 1).to(tl.int64)
    return start, end


@triton.jit
def scan_forward(
    g, v, initial, offsets, output, final, tokens, channels: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr
):
    """h = exp(g) h + v; output [B * T, C], final [sequences, C]."""
    n, block = tl.program_id(0), tl.program_id(1)
    start, end = stretch(offsets, tokens, n)
    column = block * BC + tl.arange(0, BC)
    there = column < channels
    row = tl.arange(0, BT)
    h = tl.load(initial + n.to(tl.int64) * channels + column, mask=there, other=0.0).to(tl.float32)  # [BC]
    for i in range(tl.cdiv(end - start, BT)):
        token = start + i * BT + row
        mask = (token < end)[:, None] & there[None, :]
        place = token[:, None] * channels + column[None, :]
        decay = tl.exp(tl.load(g + place, mask=mask, other=0.0).to(tl.float32))  # [BT, BC]
        write = tl.load(v + place, mask=mask, other=0.0).to(tl.float32)
        decay, write = tl.associative_scan((decay, write), 0, stretched)
        states = decay * h[None, :] + write
        tl.store(output + place, states, mask=mask)
        h = tl.sum(tl.where(row[:, None] == BT - 1, states, 0.0), 0)
    tl.store(final + n.to(tl.int64) * channels + column, h, mask=there)


@triton.jit
def scan_backward(
    g,
    initial,
    offsets,
    output,
    d_output,
    d_final,
    d_g,
    d_v,
    d_initial,
    tokens,
    channels: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
):
    """The same from the last token to the first: d_t = dh_t + exp(g_(t+1)) d_(t+1)."""
    n, block = tl.program_id(0), tl.program_id(1)
    start, end = stretch(offsets, tokens, n)
    column = block * BC + tl.arange(0, BC)
    there = column < channels
    row = tl.arange(0, BT)
    h = tl.load(initial + n.to(tl.int64) * channels + column, mask=there, other=0.0).to(tl.float32)  # [BC]
    d = tl.load(d_final + n.to(tl.int64) * channels + column, mask=there, other=0.0).to(tl.float32)
    blocks = tl.cdiv(end - start, BT)
    for i in range(blocks):
        token = start + (blocks - 1 - i) * BT + row
        mask = (token < end)[:, None] & there[None, :]
        place = token[:, None] * channels + column[None, :]
        follows = (token + 1 < end)[:, None] & there[None, :]
        later = tl.exp(tl.load(g + place + channels, mask=follows, other=0.0).to(tl.float32))  # [BT, BC]
        slope = tl.load(d_output + place, mask=mask, other=0.0).to(tl.float32)
        later, slope = tl.associative_scan((later, slope), 0, stretched, reverse=True)
        slopes = later * d[None, :] + slope
        preceded = (token > start)[:, None] & mask
        before = tl.load(output + place - channels, mask=preceded, other=0.0)
        before = tl.where((token == start)[:, None], h[None, :], before)
        decay = tl.exp(tl.load(g + place, mask=mask, other=0.0).to(tl.float32))
        tl.store(d_v + place, slopes, mask=mask)
        tl.store(d_g + place, slopes * before * decay, mask=mask)
        d = tl.sum(tl.where(row[:, None] == 0, slopes, 0.0), 0)
    first = tl.load(g + start * channels + column, mask=there & (start < end), other=0.0).to(tl.float32)
    tl.store(d_initial + n.to(tl.int64) * channels + column, d * tl.exp(first), mask=there)


@triton.jit
def selective_forward(
    q,
    k,
    v,
    dt,
    rates,
    initial,
    offsets,
    output,
    final,
    entering,
    tokens,
    channels: tl.constexpr,
    numbers: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    BN: tl.constexpr,
):
    """h = exp(dt rates) h + dt v k^T, o = h q. entering: the state before each block of tokens, or None."""
    n, block = tl.program_id(0), tl.program_id(1)
    start, end = stretch(offsets, tokens, n)
    column, number, row = block * BC + tl.arange(0, BC), tl.arange(0, BN), tl.arange(0, BT)
    there, counts = column < channels, number < numbers
    cell = column[:, None] * numbers + number[None, :]
    cells = there[:, None] & counts[None, :]
    size = channels * numbers
    rate = tl.load(rates + cell, mask=cells, other=0.0).to(tl.float32)  # [BC, BN]
    h = tl.load(initial + n.to(tl.int64) * size + cell, mask=cells, other=0.0).to(tl.float32)
    slot = start // BT + n
    for i in range(tl.cdiv(end - start, BT)):
        token = start + i * BT + row
        inside = (token < end)[:, None]
        wide, narrow = inside & there[None, :], inside & counts[None, :]
        place, other = token[:, None] * channels + column[None, :], token[:, None] * numbers + number[None, :]
        if entering is not None:
            tl.store(entering + (slot + i) * size + cell, h, mask=cells)
        step = tl.load(dt + place, mask=wide, other=0.0).to(tl.float32)  # [BT, BC]
        value = tl.load(v + place, mask=wide, other=0.0).to(tl.float32)
        key = tl.load(k + other, mask=narrow, other=0.0).to(tl.float32)  # [BT, BN]
        query = tl.load(q + other, mask=narrow, other=0.0).to(tl.float32)
        decay = tl.exp(step[:, :, None] * rate[None, :, :])  # [BT, BC, BN]
        write = (step * value)[:, :, None] * key[:, None, :]
        decay, write = tl.associative_scan((decay, write), 0, stretched)
        states = decay * h[None, :, :] + write
        tl.store(output + place, tl.sum(states * query[:, None, :], 2), mask=wide)
        h = tl.sum(tl.where(row[:, None, None] == BT - 1, states, 0.0), 0)
    tl.store(final + n.to(tl.int64) * size + cell, h, mask=cells)


@triton.jit
def selective_backward(
    q,
    k,
    v,
    dt,
    rates,
    offsets,
    entering,
    d_output,
    d_final,
    d_q,
    d_k,
    d_v,
    d_dt,
    d_rates,
    d_initial,
    tokens,
    rows,
    channels: tl.constexpr,
    numbers: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    BN: tl.constexpr,
):
    """d_q, d_k [blocks of channels, B * T, N] and d_rates [sequences, C, N] are to be summed over the first."""
    n, block = tl.program_id(0), tl.program_id(1)
    start, end = stretch(offsets, tokens, n)
    column, number, row = block * BC + tl.arange(0, BC), tl.arange(0, BN), tl.arange(0, BT)
    there, counts = column < channels, number < numbers
    cell = column[:, None] * numbers + number[None, :]
    cells = there[:, None] & counts[None, :]
    size = channels * numbers
    rate = tl.load(rates + cell, mask=cells, other=0.0).to(tl.float32)  # [BC, BN]
    d = tl.load(d_final + n.to(tl.int64) * size + cell, mask=cells, other=0.0).to(tl.float32)
    d_rate = tl.zeros_like(rate)
    slot, blocks = start // BT + n, tl.cdiv(end - start, BT)
    part = block.to(tl.int64) * rows * numbers
    for i in range(blocks):
        at = blocks - 1 - i
        token = start + at * BT + row
        inside, follows = (token < end)[:, None], (token + 1 < end)[:, None]
        preceded = inside & (row > 0)[:, None]
        wide, narrow = inside & there[None, :], inside & counts[None, :]
        place, other = token[:, None] * channels + column[None, :], token[:, None] * numbers + number[None, :]
        h = tl.load(entering + (slot + at) * size + cell, mask=cells, other=0.0)
        before = preceded & there[None, :]
        step = tl.load(dt + place - channels, mask=before, other=0.0).to(tl.float32)  # [BT, BC], of the token before
        value = tl.load(v + place - channels, mask=before, other=0.0).to(tl.float32)
        key = tl.load(k + other - numbers, mask=preceded & counts[None, :], other=0.0).to(tl.float32)  # [BT, BN]
        decay = tl.exp(step[:, :, None] * rate[None, :, :])  # [BT, BC, BN]
        write = (step * value)[:, :, None] * key[:, None, :]
        decay, write = tl.associative_scan((decay, write), 0, stretched)
        past = decay * h[None, :, :] + write  # the state before each token
        step = tl.load(dt + place, mask=wide, other=0.0).to(tl.float32)
        value = tl.load(v + place, mask=wide, other=0.0).to(tl.float32)
        key = tl.load(k + other, mask=narrow, other=0.0).to(tl.float32)
        query = tl.load(q + other, mask=narrow, other=0.0).to(tl.float32)
        slope = tl.load(d_output + place, mask=wide, other=0.0).to(tl.float32)  # [BT, BC]
        kept = past * tl.exp(step[:, :, None] * rate[None, :, :])
        states = kept + (step * value)[:, :, None] * key[:, None, :]
        tl.store(d_q + part + other, tl.sum(slope[:, :, None] * states, 1), mask=narrow)
        later = tl.load(dt + place + channels, mask=follows & there[None, :], other=0.0).to(tl.float32)
        later = tl.exp(later[:, :, None] * rate[None, :, :])
        slope = slope[:, :, None] * query[:, None, :]
        later, slope = tl.associative_scan((later, slope), 0, stretched, reverse=True)
        slopes = later * d[None, :, :] + slope  # of the state after each token
        tl.store(d_k + part + other, tl.sum(slopes * (step * value)[:, :, None], 1), mask=narrow)
        written = tl.sum(slopes * key[:, None, :], 2)
        logs = slopes * kept
        tl.store(d_v + place, written * step, mask=wide)
        tl.store(d_dt + place, written * value + tl.sum(logs * rate[None, :, :], 2), mask=wide)
        d_rate += tl.sum(logs * step[:, :, None], 0)
        d = tl.sum(tl.where(row[:, None, None] == 0, slopes, 0.0), 0)
    first = tl.load(dt + start * channels + column, mask=there & (start < end), other=0.0).to(tl.float32)
    tl.store(d_initial + n.to(tl.int64) * size + cell, d * tl.exp(first[:, None] * rate), mask=cells)
    tl.store(d_rates + n.to(tl.int64) * size + cell, d_rate, mask=cells)
