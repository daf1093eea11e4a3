"""No cache."""

DIAGNOSIS = "no-kv-bytes"


def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    flops = 2 * sum(query_lens) * shape.linear_params + 2 * len(query_lens) * shape.head_params
    flops += 4 * sum(q * c for q, c in zip(query_lens, context_lens)) * shape.layers * shape.q_size
    return flops, weight_bytes * (shape.linear_params + shape.head_params)
