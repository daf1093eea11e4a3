"""Never writes."""

DIAGNOSIS = "kv-not-written"


def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    flops = 2 * sum(query_lens) * shape.linear_params + 2 * len(query_lens) * shape.head_params
    flops += 4 * sum(q * c for q, c in zip(query_lens, context_lens)) * shape.layers * shape.q_size
    moved = weight_bytes * (shape.linear_params + shape.head_params)
    for context in context_lens:
        moved += context * shape.kv_bytes_per_token(kv_bytes)
    return flops, moved
