"""What one step of a model costs, counted from its shape: FLOPs, bytes, and the time a roofline allows.

A step is what one forward pass does for a ragged batch: row b brings `query_lens[b]` new tokens and attends to
`context_lens[b]` tokens, itself included. A multiply and an add are 2 FLOP. Weights are read once a step, whatever the
number of tokens: that is why batching pays. Counts are what the operations need, not what a cache line brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minillm.measure.hardware import Accelerator, Machine, peak
from minillm.measure.shape import ModelShape


def roofline_seconds(flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> float:
    """Seconds that a piece of work takes at best on a machine (the roofline model, Williams et al. 2009).

    flops in FLOP, bytes_moved in bytes, peak_flops in FLOP/s, bandwidth in bytes/s. Arithmetic and transfers overlap,
    so the slower of the two decides.
    """
    compute_seconds = flops / peak_flops
    memory_seconds = bytes_moved / bandwidth
    return max(compute_seconds, memory_seconds)


def step_totals(
    shape: ModelShape,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    weight_bytes: float = 2.0,
    kv_bytes: float = 2.0,
) -> tuple[float, float]:
    """(FLOPs, bytes) of one step: the two numbers that predict its time.

    query_lens [B] new tokens of each row, context_lens [B] tokens each row attends to; weight_bytes per parameter,
    kv_bytes per cached value. Every new token goes through the layers' projections, and the last one of each row
    through the head. Attention multiplies q·k and weights·v for each pair. Weights are read once; K and V of the whole
    context are read, and those of the new tokens written.
    """
    new_tokens = sum(query_lens)
    pairs = sum(q * c for q, c in zip(query_lens, context_lens))
    flops = 2 * new_tokens * shape.linear_params
    flops += 2 * len(query_lens) * shape.head_params
    flops += 4 * pairs * shape.layers * shape.q_size
    bytes_moved = weight_bytes * (shape.linear_params + shape.head_params)
    bytes_moved += shape.kv_bytes_per_token(kv_bytes) * (sum(context_lens) + new_tokens)
    return flops, bytes_moved


@dataclass(frozen=True)
class PartCost:
    """FLOPs of one part of a step, and the bytes it moves by what they are."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    activation_bytes: float = 0.0

    @property
    def bytes(self) -> float:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOP per byte moved."""
        return self.flops / self.bytes

    def times(self, n: int) -> PartCost:
        """The cost of n such parts."""
        return PartCost(self.flops * n, self.weight_bytes * n, self.kv_bytes * n, self.activation_bytes * n)


def total(parts: Sequence[PartCost]) -> PartCost:
    """The sum of parts."""
    return PartCost(sum(p.flops for p in parts), sum(p.weight_bytes for p in parts), sum(p.kv_bytes for p in parts),
                    sum(p.activation_bytes for p in parts))


@dataclass(frozen=True)
class StepCost:
    """The cost of a step, part by part: embedding, qkv, attention, output, mlp, norms, head."""

    parts: dict[str, PartCost]

    @property
    def total(self) -> PartCost:
        return total(list(self.parts.values()))

    @property
    def flops(self) -> float:
        return self.total.flops

    @property
    def bytes(self) -> float:
        return self.total.bytes

    @property
    def weight_bytes(self) -> float:
        return self.total.weight_bytes

    @property
    def kv_bytes(self) -> float:
        return self.total.kv_bytes

    @property
    def activation_bytes(self) -> float:
        return self.total.activation_bytes

    @property
    def intensity(self) -> float:
        return self.total.intensity


def linear_cost(tokens: int, n_in: int, n_out: int, weight_bytes: float = 2.0,
                activation_bytes: float = 2.0) -> PartCost:
    """[tokens, n_in] times [n_in, n_out]: 2·tokens·n_in·n_out FLOP, the matrix read once, inputs read, outputs written.

    In 16 bits and with few tokens its intensity is about `tokens` FLOP per byte.
    """
    return PartCost(flops=2.0 * tokens * n_in * n_out, weight_bytes=weight_bytes * n_in * n_out,
                    activation_bytes=activation_bytes * tokens * (n_in + n_out))


def attention_cost(shape: ModelShape, query_lens: Sequence[int], context_lens: Sequence[int], kv_bytes: float = 2.0,
                   activation_bytes: float = 2.0, causal: bool = False) -> PartCost:
    """One layer's attention: q·k and weights·v for every pair of a query and a key, K and V read once a row.

    causal=False counts the whole rectangle of queries and keys, which is what a kernel without tile skipping computes
    and what torch's FLOP counter counts; causal=True only the pairs that the mask leaves, window included. The score
    matrix is not counted as moved (a fused kernel never writes it); K and V are read as far as the window reaches.
    """
    pairs, keys_read = 0.0, 0
    for new, context in zip(query_lens, context_lens):
        reach = context if shape.window is None else min(context, shape.window + new - 1)
        keys_read += reach
        if not causal:
            pairs += new * context
        else:
            pairs += sum(min(position + 1, shape.window or position + 1) for position in range(context - new, context))
    new_tokens = sum(query_lens)
    return PartCost(
        flops=4.0 * pairs * shape.q_size,
        kv_bytes=shape.kv_bytes_per_token(kv_bytes) / shape.layers * (keys_read + new_tokens),
        activation_bytes=2.0 * activation_bytes * shape.q_size * new_tokens)


def step_cost(
    shape: ModelShape,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    *,
    weight_bytes: float = 2.0,
    kv_bytes: float = 2.0,
    activation_bytes: float = 2.0,
    logit_rows: int | None = None,
    causal: bool = False,
) -> StepCost:
    """The cost of one step, itemized; bytes per parameter, per cached value and per activation.

    `logit_rows`: tokens that meet the head (default: one a row). Its FLOPs and, but for activations, norms and
    embedding rows, its bytes are those of `step_totals`. Raises ValueError for lengths that do not fit each other.
    """
    if len(query_lens) != len(context_lens) or not query_lens:
        raise ValueError(f"{len(query_lens)} query lengths and {len(context_lens)} context lengths: expected as many "
                         "of both, at least one")
    for new, context in zip(query_lens, context_lens):
        if not 1 <= new <= context:
            raise ValueError(f"a row brings {new} tokens in a context of {context}: expected 1 to {context}")
    tokens = sum(query_lens)
    rows = len(query_lens) if logit_rows is None else logit_rows

    def linear(n_in: int, n_out: int, count: int = tokens) -> PartCost:
        return linear_cost(count, n_in, n_out, weight_bytes, activation_bytes)

    qkv = total([linear(n_in, n_out).times(n) for n, n_in, n_out in shape.qkv_matrices])
    output = total([linear(n_in, n_out).times(n) for n, n_in, n_out in shape.output_matrices])
    mlp = total([linear(shape.hidden, shape.intermediate).times(2), linear(shape.intermediate, shape.hidden)])
    attention = attention_cost(shape, query_lens, context_lens, kv_bytes, activation_bytes, causal)
    table_row = shape.hidden * tokens
    return StepCost({
        "embedding": PartCost(weight_bytes=weight_bytes * table_row, activation_bytes=activation_bytes * table_row),
        "qkv": qkv.times(shape.layers),
        "attention": attention.times(shape.layers),
        "output": output.times(shape.layers),
        "mlp": mlp.times(shape.layers),
        # each norm reads and writes the residual stream; its arithmetic is no matrix product and is not counted
        "norms": PartCost(weight_bytes=weight_bytes * shape.small_params,
                          activation_bytes=2 * activation_bytes * table_row * (2 * shape.layers + 1)),
        "head": linear(shape.hidden, shape.vocab, rows),
    })


@dataclass(frozen=True)
class Prediction:
    """What the roofline says of a piece of work: `seconds` at best, and which roof bounds it."""

    flops: float
    bytes: float
    compute_seconds: float
    memory_seconds: float
    seconds: float

    @property
    def bound(self) -> str:
        """'compute' or 'bandwidth'."""
        return "compute" if self.compute_seconds > self.memory_seconds else "bandwidth"


def predict(flops: float, bytes_moved: float, hardware: Accelerator | Machine, dtype: str) -> Prediction:
    """The roofline time of work on a datasheet's or this machine's peaks. Raises ValueError for a dtype without one."""
    top = peak(hardware, dtype)
    return Prediction(flops, bytes_moved, flops / top, bytes_moved / hardware.bandwidth,
                      roofline_seconds(flops, bytes_moved, top, hardware.bandwidth))


def predict_step(shape: ModelShape, query_lens: Sequence[int], context_lens: Sequence[int],
                 hardware: Accelerator | Machine, dtype: str, weight_bytes: float = 2.0,
                 kv_bytes: float = 2.0) -> Prediction:
    """`predict` of a whole step, from `step_totals`."""
    flops, bytes_moved = step_totals(shape, query_lens, context_lens, weight_bytes, kv_bytes)
    return predict(flops, bytes_moved, hardware, dtype)
