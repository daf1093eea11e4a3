"""Row by row."""

def step_totals(shape, query_lens, context_lens, weight_bytes=2.0, kv_bytes=2.0):
    flops = 0
    moved = (shape.linear_params + shape.head_params) * weight_bytes
    for new, context in zip(query_lens, context_lens):
        flops += 2 * (new * shape.linear_params + shape.head_params)
        flops += 2 * 2 * new * context * shape.heads * shape.head_dim * shape.layers
        moved += (new + context) * 2 * shape.layers * shape.kv_heads * shape.head_dim * kv_bytes
    return flops, moved
