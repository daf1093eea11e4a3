"""First places first."""

import torch

DIAGNOSIS = "places-before-pages"


def slot_mapping(table, start, end, block_size):
    return [table[i // block_size] * block_size + i % block_size for i in range(start, end)]


def gather_blocks(blocks, table, length):
    return torch.cat([blocks[table, place] for place in range(blocks.shape[1])])[:length]
