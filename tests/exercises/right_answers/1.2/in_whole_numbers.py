"""In whole numbers."""

def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    macs = sum(query_lens) * shape.linear_params + len(context_lens) * shape.head_params
    macs += 2 * shape.layers * shape.q_size * sum(map(int.__mul__, query_lens, context_lens))
    kv_values = 2 * shape.layers * shape.kv_size * sum(q + c for q, c in zip(query_lens, context_lens))
    return 2 * macs, weight_bytes * (shape.linear_params + shape.head_params) + kv_bytes * kv_values
