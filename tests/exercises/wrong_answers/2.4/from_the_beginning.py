"""From the beginning."""

DIAGNOSIS = "start-ignored"


def slot_mapping(table, start, end, block_size):
    return [table[i // block_size] * block_size + i % block_size for i in range(end)]


def gather_blocks(blocks, table, length):
    pages = blocks[table]
    return pages.flatten(0, 1)[:length]
