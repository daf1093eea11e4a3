"""Any cache, under any history of chunks and rollbacks, attends as if everything were recomputed."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from minillm.attention import reference
from minillm.model.batch import make_batch
from minillm.model.config import KVSpec

SPECS = [KVSpec(2, 8, 6, None, 0.35), KVSpec(2, 8, 6, 3, 0.35)]
HISTORIES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 6), st.sampled_from(["add", "add", "free", "truncate", "keep"])),
    min_size=1, max_size=20)


class Keys:
    """Reproducible q, k, v of any token, so that history can be rebuilt."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, token: int, layer: int, kind: int, heads: int, width: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, token, layer, kind)) % 2**31)
        return torch.randn(heads, width, dtype=torch.float64, generator=generator)


def attend_and_compare(cache, specs, text: list[int], added: int, step, make: Keys, tolerance: float) -> None:
    """Attend in every layer to `text`, whose last `added` tokens are new, and compare with the whole text at once."""
    for layer, spec in enumerate(specs):
        q = torch.stack([make(t, layer, 0, 2 * spec.heads, spec.k_dim) for t in text[-added:]])
        k = torch.stack([make(t, layer, 1, spec.heads, spec.k_dim) for t in text])
        v = torch.stack([make(t, layer, 2, spec.heads, spec.v_dim) for t in text])
        got = cache.attend(layer, q, k[-added:], v[-added:], step)
        expected = reference.causal_attention(q, k, v, spec.scale, spec.window)
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def check_history(cache, specs, history, seed: int, max_len: int = 16, tolerance: float = 1e-12) -> None:
    """Chunks, frees, truncations and kept positions, in any order."""
    make = Keys(seed)
    texts: dict[int, list[int]] = {}  # sequence -> the identity of each token it holds
    fresh = 0
    for seq, n, action in history:
        text = texts.get(seq, [])
        if action == "free" and seq in texts:
            cache.free(seq)
            del texts[seq]
        elif action == "truncate" and seq in texts:
            cache.truncate(seq, min(n, len(text)))
            texts[seq] = text[:n]
        elif action == "keep" and seq in texts:
            kept = sorted({i * 2 % max(len(text), 1) for i in range(min(n, len(text)))})
            cache.keep(seq, kept)
            texts[seq] = [text[i] for i in kept]
        elif action == "add" and 0 < n <= max_len - len(text):
            added = list(range(fresh, fresh + n))
            fresh += n
            step = cache.begin(make_batch([(seq, added, len(text))]))
            texts[seq] = text + added
            attend_and_compare(cache, specs, texts[seq], n, step, make, tolerance)
        assert cache.length(seq) == len(texts.get(seq, []))
