"""Writes into the shared."""

DIAGNOSIS = "shared-block-written"


def make_writable(pool, table, start, end):
    while len(table) * pool.block_size < end:
        table += pool.allocate(1)
    return []
