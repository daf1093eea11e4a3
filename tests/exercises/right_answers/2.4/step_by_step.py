"""Step by step."""

import torch


def slot_mapping(table, start, end, block_size):
    slots = []
    for position in range(start, end):
        page, place = divmod(position, block_size)
        slots.append(table[page] * block_size + place)
    return slots


def gather_blocks(blocks, table, length):
    rows = []
    for i in range(length):
        rows.append(blocks[table[i // blocks.shape[1]], i % blocks.shape[1]])
    return torch.stack(rows)
