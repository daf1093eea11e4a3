"""Hands over a list."""

from minillm.attention.reference import causal_attention

DIAGNOSIS = "type"


def ragged_attention(q, keys, values, query_lens, scale, window=None):
    pieces = q.split(query_lens)
    return [causal_attention(piece, k, v, scale, window) for piece, k, v in zip(pieces, keys, values)]
