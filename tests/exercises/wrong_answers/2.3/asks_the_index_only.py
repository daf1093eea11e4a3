"""Asks the index only."""

DIAGNOSIS = "holders-overlooked"


def make_writable(pool, table, start, end):
    copies = []
    for page in range(start // pool.block_size, len(table)):
        if table[page] in pool.cached:
            (own,) = pool.allocate()
            copies.append((table[page], own))
            pool.release([table[page]])
            table[page] = own
    table += pool.allocate(max(0, pool.blocks_for(end) - len(table)))
    return copies
