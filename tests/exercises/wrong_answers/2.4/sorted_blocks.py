"""Sorted blocks."""

import torch

DIAGNOSIS = "in-the-pools-order"


def slot_mapping(table, start, end, block_size):
    return [table[i // block_size] * block_size + i % block_size for i in range(start, end)]


def gather_blocks(blocks, table, length):
    return torch.cat([blocks[b] for b in range(len(blocks)) if b in table])[:length]
