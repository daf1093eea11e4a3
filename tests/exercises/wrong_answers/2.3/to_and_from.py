"""To and from."""

DIAGNOSIS = "copies-reversed"


def make_writable(pool, table, start, end):
    copies = []
    for page in range(start // pool.block_size, len(table)):
        if pool.is_shared(table[page]):
            (own,) = pool.allocate()
            copies.append((own, table[page]))
            pool.release([table[page]])
            table[page] = own
    table += pool.allocate(max(0, pool.blocks_for(end) - len(table)))
    return copies
