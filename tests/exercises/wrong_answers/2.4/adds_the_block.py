"""Adds the block."""

DIAGNOSIS = "blocks-overlap"


def slot_mapping(table, start, end, block_size):
    return [table[i // block_size] + i % block_size for i in range(start, end)]


def gather_blocks(blocks, table, length):
    pages = blocks[table]
    return pages.flatten(0, 1)[:length]
