"""Blocks of the new tokens."""

DIAGNOSIS = "grows-by-the-new-tokens"


def make_writable(pool, table, start, end):
    copies = []
    for page in range(start // pool.block_size, len(table)):
        if pool.is_shared(table[page]):
            (own,) = pool.allocate()
            copies.append((table[page], own))
            pool.release([table[page]])
            table[page] = own
    table += pool.allocate(pool.blocks_for(end - start))
    return copies
