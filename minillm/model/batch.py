"""What one forward pass works on: a ragged batch, rows of different lengths laid end to end, no padding.

A prefill, a chunk of one, a decode, a mix of them and a speculative check are all the same `Batch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass
class Batch:
    """B rows, T = sum(query_lens) tokens.

    token_ids    [T] int64, the rows end to end
    positions    [T] int64, each token's place in its own sequence
    seq_ids      [B] which sequence of the cache each row continues
    query_lens   [B] new tokens of each row, at least 1
    context_lens [B] tokens in the cache once this step is written: what came before plus query_lens
    logit_rows   [R] indices into [T] of the tokens whose logits are wanted
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    seq_ids: list[int]
    query_lens: list[int]
    context_lens: list[int]
    logit_rows: list[int]


def make_batch(
    rows: Sequence[tuple[int, Sequence[int], int]],
    device: torch.device | str = "cpu",
    all_logits: bool = False,
) -> Batch:
    """A Batch from rows `(seq_id, token_ids, start)`, where `start` tokens of the sequence are cached already.

    Logits are asked for each row's last token, or for every token with `all_logits`.
    Raises ValueError for no rows, an empty row, a negative start or the same sequence twice.
    """
    if not rows:
        raise ValueError("batch has no rows: expected at least one")
    tokens: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    for seq_id, token_ids, start in rows:
        if len(token_ids) == 0:
            raise ValueError(f"row of sequence {seq_id} has no tokens: expected at least one")
        if start < 0:
            raise ValueError(f"row of sequence {seq_id} starts at {start}: expected 0 or more")
        tokens.extend(token_ids)
        positions.extend(range(start, start + len(token_ids)))
        logit_rows.append(len(tokens) - 1)
    seq_ids = [row[0] for row in rows]
    if len(set(seq_ids)) != len(seq_ids):
        raise ValueError(f"sequence ids are {seq_ids}: expected each at most once in a batch")
    query_lens = [len(row[1]) for row in rows]
    return Batch(
        token_ids=torch.tensor(tokens, dtype=torch.int64, device=device),  # [T]
        positions=torch.tensor(positions, dtype=torch.int64, device=device),  # [T]
        seq_ids=seq_ids,
        query_lens=query_lens,
        context_lens=[row[2] + n for row, n in zip(rows, query_lens)],
        logit_rows=list(range(len(tokens))) if all_logits else logit_rows,
    )
