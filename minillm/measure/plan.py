"""Will it fit, how fast can it be, what does it cost: a model on an accelerator, from arithmetic alone.

Predictions are rooflines: what no implementation can beat, not what one reaches. Quantized weights are taken as
weight-only quantization: fewer bytes are read, the arithmetic stays in 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minillm.measure import cost
from minillm.measure.hardware import Accelerator, Machine
from minillm.measure.shape import ModelShape

WEIGHT_BITS = (4, 8, 16, 32)
RESERVE = 0.1  # of memory, kept for activations, the runtime and fragmentation


@dataclass(frozen=True)
class Plan:
    """A model × hardware × bits × context × batch. Bytes, seconds, dollars.

    `requests_that_fit`: how many of `context` tokens fit beside the weights, a tenth of the memory left free.
    `prefill`: one request's `context` tokens, whose time is TTFT. `decode`: one token for each of `batch` requests at
    that context, whose time is TPOT. `dollars_per_million_tokens`: output tokens at the decode rate, None without a
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
    price_per_hour: float | None
    dollars_per_million_tokens: float | None


def compute_dtype(hardware: Accelerator | Machine, weight_bits: int) -> str:
    """The dtype arithmetic happens in: float32 at 32 bits, else bfloat16, or float16 where there is no bfloat16."""
    if weight_bits == 32:
        return "float32"
    return "bfloat16" if "bfloat16" in hardware.peak_flops else "float16"


def plan(
    shape: ModelShape,
    hardware: Accelerator | Machine,
    *,
    weight_bits: int = 16,
    kv_bits: int = 16,
    context: int | None = None,
    batch: int = 1,
    price_per_hour: float | None = None,
) -> Plan:
    """Capacity and roofline times; `context` defaults to the model's, at most 4096.

    Raises ValueError for bits other than 4, 8, 16 or 32, a context outside the model's, a batch below 1, or a price
    that is not positive.
    """
    for name, bits in (("weight bits", weight_bits), ("KV bits", kv_bits)):
        if bits not in WEIGHT_BITS:
            raise ValueError(f"{name} is {bits}: expected one of {', '.join(map(str, WEIGHT_BITS))}")
    context = min(shape.context, 4096) if context is None else context
    if not 1 <= context <= shape.context:
        raise ValueError(f"context is {context}: expected 1 to {shape.context}, the longest {shape.name} was made for")
    if batch < 1:
        raise ValueError(f"batch is {batch}: expected at least 1")
    if price_per_hour is not None and not (price_per_hour > 0 and math.isfinite(price_per_hour)):
        raise ValueError(f"price is {price_per_hour}: expected dollars per hour, more than 0")
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
        tokens_per_second=rate, price_per_hour=price_per_hour,
        dollars_per_million_tokens=None if price_per_hour is None else price_per_hour / 3600 / rate * 1e6)
