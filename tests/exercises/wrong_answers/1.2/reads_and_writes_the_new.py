"""Reads and writes the new."""

DIAGNOSIS = "kv-of-new-tokens-only"


def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    flops, moved = 0, weight_bytes * (shape.linear_params + shape.head_params)
    for q, c in zip(query_lens, context_lens):
        flops += 2 * q * shape.linear_params + 2 * shape.head_params + 4 * q * c * shape.layers * shape.q_size
        moved += 2 * shape.kv_bytes_per_token(kv_bytes) * q
    return flops, moved
