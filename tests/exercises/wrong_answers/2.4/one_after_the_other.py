"""One after the other."""

DIAGNOSIS = "table-not-used"


def slot_mapping(table, start, end, block_size):
    return list(range(start, end))


def gather_blocks(blocks, table, length):
    pages = blocks[table]
    return pages.flatten(0, 1)[:length]
