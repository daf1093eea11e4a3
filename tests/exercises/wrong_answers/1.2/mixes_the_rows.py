"""Mixes the rows."""

DIAGNOSIS = "rows-see-each-other"


def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    new, context = sum(query_lens), sum(context_lens)
    flops = 2 * new * shape.linear_params + 2 * len(query_lens) * shape.head_params
    flops += 4 * new * context * shape.layers * shape.q_size
    moved = weight_bytes * (shape.linear_params + shape.head_params)
    return flops, moved + shape.kv_bytes_per_token(kv_bytes) * (new + context)
