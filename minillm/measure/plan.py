"""Will it fit, how fast can it be, what does it cost: a model on an accelerator, from arithmetic alone.

Predictions are rooflines: what no implementation can beat, not what one reaches. Quantized weights are taken as
weight-only quantization: fewer bytes are read, the arithmetic stays in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from minillm.measure import cost
from minillm.measure.arguments import check_number, check_whole
from minillm.measure.hardware import Accelerator, Machine
from minillm.measure.shape import ModelShape

WEIGHT_BITS = (4, 8, 16, 32)
RESERVE = 0.1  # of memory, kept for activations, the runtime and fragmentation
BLOCK = 16  # tokens of a KV block
MOST_ROWS = 10**6  # of a decode step, each of which is counted


@dataclass(frozen=True)
class Capacity:
    """Requests whose K and V fit beside the weights, for one way to keep them.

    `contiguous`: each has the whole context reserved. `paged`: each holds the blocks of the mean number of tokens.
    """

    kept_as: str
    bytes_per_token: float
    contiguous: int
    paged: int


@dataclass(frozen=True)
class Plan:
    """A model × hardware × bits × context × batch. Bytes, seconds, dollars.

    `requests_that_fit`: how many of `context` tokens fit beside the weights, a tenth of the memory left free.
    `prefill`: one request's `context` tokens, whose time is TTFT. `decode`: one token for each of `batch` requests at
    that context, whose time is TPOT. `capacities`: the same memory with requests of `mean_tokens`, reserved whole or in
    blocks, and in fewer bits. `dollars_per_million_tokens`: output tokens at the decode rate, None without a
    price. `fits`: whether weights and the whole batch fit at once.
    """

    model: str
    hardware: str
    weight_bits: int
    kv_bits: int
    compute_dtype: str
    context: int
    batch: int
    memory_bytes: float
    weight_bytes: float
    kv_bytes_per_token: float
    requests_that_fit: int
    fits: bool
    prefill: cost.Prediction
    decode: cost.Prediction
    tokens_per_second: float
    mean_tokens: int
    capacities: tuple[Capacity, ...]
    price_per_hour: float | None
    dollars_per_million_tokens: float | None


def compute_dtype(hardware: Accelerator | Machine, weight_bits: int) -> str:
    """The dtype arithmetic happens in: float32 at 32 bits, else bfloat16, or float16 where there is no bfloat16."""
    if weight_bits == 32:
        return "float32"
    return "bfloat16" if "bfloat16" in hardware.peak_flops else "float16"


def kv_bits_per_value(shape: ModelShape) -> dict[str, float]:
    """Bits that a value of K or V takes in a quantized cache with blocks of 16 tokens, with its share of the scales.

    Scales are 16 bits wide, one for each head of each block; for INT4 there are two of them, the step and the lowest
    value. int4-kivi has two for each channel of K, and two for each token's head of V.
    """
    group = BLOCK * shape.head_dim
    return {"int8 or fp8": 8 + 16 / group, "int4": 4 + 32 / group,
            "int4-kivi": 4 + (32 / BLOCK + 32 / shape.head_dim) / 2}


def capacities(shape: ModelShape, free_bytes: float, kv_bits: float, context: int,
               mean_tokens: int) -> tuple[Capacity, ...]:
    """Requests that fit into free_bytes: K and V in kv_bits, then in each quantized form that takes fewer."""
    longest = context if shape.window is None else min(context, shape.window)
    held = min(longest, -(-mean_tokens // BLOCK) * BLOCK)
    kinds = {f"{kv_bits:g} bits": kv_bits, **{k: b for k, b in kv_bits_per_value(shape).items() if b < kv_bits}}
    rows = []
    for name, bits in kinds.items():
        per_token = shape.kv_bytes_per_token(bits / 8)
        rows.append(Capacity(name, per_token, *(max(0, int(free_bytes // (per_token * n))) for n in (longest, held))))
    return tuple(rows)


def plan(
    shape: ModelShape,
    hardware: Accelerator | Machine,
    *,
    weight_bits: int = 16,
    kv_bits: int = 16,
    context: int | None = None,
    batch: int = 1,
    mean_tokens: int | None = None,
    price_per_hour: float | None = None,
) -> Plan:
    """Capacity and roofline times; `context` defaults to the model's, at most 4096, `mean_tokens` to a quarter of it.

    Raises ValueError for bits other than 4, 8, 16 or 32, a context outside the model's, a batch outside 1 to a million,
    mean tokens outside the context, or a price that is not positive.
    """
    for name, bits in (("weight_bits", weight_bits), ("kv_bits", kv_bits)):
        if bits not in WEIGHT_BITS:
            raise ValueError(f"{name} is {bits!r}: expected one of {', '.join(map(str, WEIGHT_BITS))}")
    context = min(shape.context, 4096) if context is None else context
    check_whole("context", context, 1, shape.context, f", the longest {shape.name} was made for")
    mean_tokens = max(1, context // 4) if mean_tokens is None else mean_tokens
    check_whole("mean_tokens", mean_tokens, 1, context, ", the context")
    check_whole("batch", batch, 1, MOST_ROWS)
    if price_per_hour is not None:
        check_number("price_per_hour", price_per_hour, lambda price: 0 < price <= 1e9,
                     "dollars per hour, more than 0, at most 1e9")
    per_weight, per_value = weight_bits / 8, kv_bits / 8
    dtype = compute_dtype(hardware, weight_bits)
    weight_bytes = shape.params * per_weight
    per_token = shape.kv_bytes_per_token(per_value)
    kept = context if shape.window is None else min(context, shape.window)
    free = hardware.memory_bytes * (1 - RESERVE) - weight_bytes
    fit = max(0, int(free // (per_token * kept)))
    prefill = cost.predict_step(shape, [context], [context], hardware, dtype, per_weight, per_value)
    decode = cost.predict_step(shape, [1] * batch, [kept] * batch, hardware, dtype, per_weight, per_value)
    rate = batch / decode.seconds
    return Plan(
        model=shape.name, hardware=hardware.name, weight_bits=weight_bits, kv_bits=kv_bits, compute_dtype=dtype,
        context=context, batch=batch, memory_bytes=hardware.memory_bytes, weight_bytes=weight_bytes,
        kv_bytes_per_token=per_token, requests_that_fit=fit, fits=fit >= batch, prefill=prefill, decode=decode,
        tokens_per_second=rate, mean_tokens=mean_tokens,
        capacities=capacities(shape, free, kv_bits, context, mean_tokens), price_per_hour=price_per_hour,
        dollars_per_million_tokens=None if price_per_hour is None else price_per_hour / 3600 / rate * 1e6)
