"""Window one too wide."""

import torch

DIAGNOSIS = "window-off-by-one"


def causal_attention(q, k, v, scale, window=None):
    outputs = torch.empty(len(q), q.shape[1], v.shape[-1], dtype=q.dtype)
    for i in range(len(q)):
        position = i + len(k) - len(q)
        first = 0 if window is None else max(0, position - window)
        for head in range(q.shape[1]):
            shared = head // (q.shape[1] // k.shape[1])
            weights = torch.softmax(k[first : position + 1, shared] @ q[i, head] * scale, 0)
            outputs[i, head] = weights @ v[first : position + 1, shared]
    return outputs
