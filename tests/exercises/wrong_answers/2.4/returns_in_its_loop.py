"""Returns in its loop."""

DIAGNOSIS = "first-page-only"


def slot_mapping(table, start, end, block_size):
    return [table[i // block_size] * block_size + i % block_size for i in range(start, end)]


def gather_blocks(blocks, table, length):
    for block in table:
        return blocks[block][:length]
