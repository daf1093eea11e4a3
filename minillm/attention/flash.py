"""FlashAttention in plain torch, for reading: tiles, the online softmax, and the merge of partial results.

The standard way writes the [S_q, S_k] scores to memory, reads them back for the softmax, writes the weights and reads
those back: bytes grow with N² whatever the chip. Here a tile of queries stays in fast memory while tiles of keys and
values pass by, and no score ever leaves it (Dao et al. 2022; queries in the outer loop as in Dao 2023). Bytes grow with
N²·d²/M, M being the size of fast memory, since K and V are read once for every tile of queries and a tile holds M/d of
them. `Traffic` counts both. torch runs it all in the same memory, of course: what is fast here is a matter of counting.

Shapes as in `reference`: q [S_q, H, D], k [S_k, H_kv, D], v [S_k, H_kv, D_v]. The last S_q of S_k positions are the
queries; a query that may see no key gets 0, and a log-sum-exp of -inf. Halves are computed in float32, as on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minillm.attention import reference, variants

State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""What B queries know after some keys: m [H, B] their largest score, total [H, B] Σ e^(score - m) (l in the papers),
and acc [H, B, D_v] Σ e^(score - m)·v."""


@dataclass
class Traffic:
    """Bytes between slow memory (a GPU's HBM) and fast memory (on the chip), and tiles of scores computed or skipped.

    K and V count once for all query heads that share them.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    tiles: int = 0
    skipped: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def read(self, *tensors: torch.Tensor) -> None:
        self.bytes_read += sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def write(self, *tensors: torch.Tensor) -> None:
        self.bytes_written += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Sight:
    """Which key a query may see: query i stands at position i + offset, offset = S_k - S_q. No causal, no window."""

    offset: int
    causal: bool = True
    window: int | None = None

    def hides_all(self, queries: range, keys: range) -> bool:
        """True if no query of the tile sees any of its keys: then nothing of it need be read."""
        first, last = queries.start + self.offset, queries.stop - 1 + self.offset
        too_late = self.causal and keys.start > last
        too_old = self.window is not None and keys.stop - 1 <= first - self.window
        return too_late or too_old

    def shows_all(self, queries: range, keys: range) -> bool:
        """True if every query of the tile sees all of its keys: then no mask is needed."""
        first, last = queries.start + self.offset, queries.stop - 1 + self.offset
        none_late = not self.causal or keys.stop - 1 <= first
        none_old = self.window is None or keys.start > last - self.window
        return none_late and none_old

    def mask(self, queries: range, keys: range, device: torch.device | str) -> torch.Tensor:
        """The tile [queries, keys] of `reference.causal_mask`, of a text that begins at the tile's first key."""
        first = queries.start + self.offset - keys.start  # where that text has the tile's first query
        until = max(len(keys), first + len(queries))
        mask = reference.causal_mask(until - first, until, self.window, device)
        return mask[: len(queries), : len(keys)]


def online_softmax_update(scores: torch.Tensor, v: torch.Tensor, m: torch.Tensor, total: torch.Tensor,
                          acc: torch.Tensor) -> State:
    """Take one more tile of keys into the softmax of a tile of queries (Milakov and Gimelshein 2018).

    scores [H, B, B_k], -inf where hidden, v [H, B_k, D_v], and the state so far: m, total [H, B], acc [H, B, D_v].
    Returns the new (m, total, acc). All that was summed so far was divided by e^m of the old m: a larger m rescales it.
    """
    new_m = torch.maximum(m, scores.amax(dim=-1))  # [H, B]
    base = new_m.masked_fill(new_m == float("-inf"), 0)  # a row that has seen no key: e^(-inf - 0) = 0, not NaN
    weights = torch.exp(scores - base[..., None])  # [H, B, B_k]
    rescale = torch.exp(m - base)  # [H, B]
    new_total = total * rescale + weights.sum(dim=-1)
    new_acc = acc * rescale[..., None] + weights @ v  # [H, B, D_v]
    return new_m, new_total, new_acc


def merge(out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor,
          lse_b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys from attention over each: the merge law, associative.

    out [S_q, H, D_v] over a part of the keys and lse [S_q, H], log Σ e^score over them -> both over all of them. A part
    without keys (out 0, lse -inf) changes nothing; neither do two.
    """
    lse = torch.logaddexp(lse_a, lse_b)  # [S_q, H]
    base = lse.masked_fill(lse == float("-inf"), 0)  # no keys in either part: weights of 0, not NaN
    weight_a, weight_b = torch.exp(lse_a - base), torch.exp(lse_b - base)  # they sum to 1
    return weight_a[..., None] * out_a + weight_b[..., None] * out_b, lse


def tiled_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, block_q: int = 64,
                    block_k: int = 64, causal: bool = True, window: int | None = None,
                    traffic: Traffic | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by tiles of block_q queries and block_k keys: out [S_q, H, D_v] and lse [S_q, H].

    Tiles in which the mask hides everything are neither read nor computed. The largest thing held beside the inputs and
    the result is a tile of scores [H, block_q, block_k]. Raises ValueError for a block below 1, or a window without
    causal.
    """
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if block < 1:
            raise ValueError(f"{name} is {block}: expected at least 1")
    if window is not None and not causal:
        raise ValueError(f"window is {window} without causal: expected None, a window looks back")
    sight = Sight(len(k) - len(q), causal, window)
    parts = [attend_tile(q, k, v, scale, rows, range(len(k)), block_k, sight, traffic)
             for rows in tiles(range(len(q)), block_q)]
    out, lse = (torch.cat(kind) for kind in zip(*parts))
    return out.to(q.dtype), lse


def attend_tile(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, rows: range, keys: range, block_k: int,
                sight: Sight, traffic: Traffic | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """One tile of queries against some of the keys, tile after tile: out [B, H, D_v], lse [B, H], float32 or wider."""
    traffic = traffic or Traffic()
    wide = torch.promote_types(q.dtype, torch.float32)
    tile_q = q[rows.start : rows.stop].to(wide).transpose(0, 1)  # [H, B, D]
    traffic.read(q[rows.start : rows.stop])
    m = tile_q.new_full(tile_q.shape[:2], float("-inf"))  # [H, B]
    state = m, torch.zeros_like(m), tile_q.new_zeros(*m.shape, v.shape[-1])
    for columns in tiles(keys, block_k):
        if sight.hides_all(rows, columns):
            traffic.skipped += 1
            continue
        tile_k, tile_v = k[columns.start : columns.stop], v[columns.start : columns.stop]  # [B_k, H_kv, D], [.., D_v]
        traffic.read(tile_k, tile_v)
        traffic.tiles += 1
        tile_k, tile_v = (variants.expand_kv_heads(t.to(wide), q.shape[1]) for t in (tile_k, tile_v))
        scores = tile_q @ tile_k.permute(1, 2, 0) * scale  # [H, B, B_k]
        if not sight.shows_all(rows, columns):
            scores = scores.masked_fill(~sight.mask(rows, columns, q.device), float("-inf"))
        state = online_softmax_update(scores, tile_v.transpose(0, 1), *state)
    out, lse = finish(*state)
    traffic.write(out.to(q.dtype), lse)
    return out, lse


def finish(m: torch.Tensor, total: torch.Tensor, acc: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The state after the last tile -> out [B, H, D_v] and lse [B, H]: divide once, at the end."""
    out = acc / total.masked_fill(total == 0, 1)[..., None]  # a row that saw no key stays 0
    return out.transpose(0, 1), (m + total.log()).transpose(0, 1)


def split_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, splits: int, block_k: int = 64,
                    window: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention with the keys cut into `splits` parts, each attended to by itself, then merged (split-KV).

    For decode: a few queries give a chip nothing to do in parallel, parts of a long context do (Flash-Decoding, 2023).
    Returns out [S_q, H, D_v] and lse [S_q, H]. More splits than keys leave some empty. Raises ValueError for fewer than
    1 split, or tiles of fewer than 1 key.
    """
    for name, number in (("splits", splits), ("block_k", block_k)):
        if number < 1:
            raise ValueError(f"{name} is {number}: expected at least 1")
    sight, rows = Sight(len(k) - len(q), True, window), range(len(q))
    edges = [len(k) * i // splits for i in range(splits + 1)]
    parts = [attend_tile(q, k, v, scale, rows, range(start, stop), block_k, sight)
             for start, stop in zip(edges, edges[1:])]
    out, lse = parts[0]
    for part in parts[1:]:
        out, lse = merge(out, lse, *part)
    return out.to(q.dtype), lse


def standard_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float,
                       traffic: Traffic | None = None) -> torch.Tensor:
    """Causal attention by three passes over memory, with what each reads and writes counted: [S_q, H, D_v].

    The [H, S_q, S_k] scores are written, read, written as weights and read again, hidden ones too. S_q <= S_k.
    """
    traffic = traffic or Traffic()
    expanded_k, expanded_v = (variants.expand_kv_heads(t, q.shape[1]) for t in (k, v))
    traffic.read(q, k)
    scores = torch.einsum("qhd,khd->hqk", q, expanded_k) * scale  # [H, S_q, S_k]
    traffic.write(scores)
    traffic.read(scores)
    visible = reference.causal_mask(len(q), len(k), None, q.device)  # [S_q, S_k]
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    traffic.write(weights)
    traffic.read(weights, v)
    out = torch.einsum("hqk,khd->qhd", weights, expanded_v)  # [S_q, H, D_v]
    traffic.write(out)
    return out


def block_that_fits(fast_bytes: int, head_dim: int, bytes_per_value: int = 2) -> int:
    """The B for which a head's tiles of q, k, v and the result, B values of head_dim each, fill fast memory of that
    size: M / (4·d) in values, at least 1."""
    return max(1, fast_bytes // (4 * head_dim * bytes_per_value))


def tiles(indices: range, size: int) -> list[range]:
    """The range cut into runs of `size`, the last one maybe shorter."""
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def ragged_attention(q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor], query_lens: list[int],
                     scale: float, window: int | None, masks: dict) -> torch.Tensor:
    """A backend, `tiled`: as `reference.ragged_attention`. Rows of several queries go by tiles, single ones by splits.

    For reading and for exercises; torch runs it several times slower than the reference.
    """
    outputs = []
    for row, k, v in zip(q.split(query_lens), keys, values):  # [S_q, H, D], [S_k, H_kv, D], [S_k, H_kv, D_v]
        if len(row) == 1:
            out, _ = split_attention(row, k, v, scale, splits=4, window=window)
        else:
            out, _ = tiled_attention(row, k, v, scale, window=window)
        outputs.append(out)
    return torch.cat(outputs)  # [T, H, D_v]
