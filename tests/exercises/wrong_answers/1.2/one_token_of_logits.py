"""One token of logits."""

DIAGNOSIS = "head-once"


def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    new = sum(query_lens)
    flops = 2 * new * shape.linear_params + 2 * shape.head_params
    flops += 4 * sum(q * c for q, c in zip(query_lens, context_lens)) * shape.layers * shape.q_size
    moved = weight_bytes * (shape.linear_params + shape.head_params)
    return flops, moved + shape.kv_bytes_per_token(kv_bytes) * (new + sum(context_lens))
