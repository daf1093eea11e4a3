"""By whole blocks."""

import torch


def slot_mapping(table, start, end, block_size):
    slots = [slot for block in table for slot in range(block * block_size, (block + 1) * block_size)]
    return slots[start:end]


def gather_blocks(blocks, table, length):
    return torch.cat([blocks[block] for block in table])[:length]
