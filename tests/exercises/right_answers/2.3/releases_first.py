"""Releases first."""

def make_writable(pool, table, start, end):
    copies, page = [], start // pool.block_size
    while page * pool.block_size < end:
        if page == len(table):
            table += pool.allocate()
        elif pool.is_shared(table[page]):
            old = table[page]
            pool.release([old])
            (table[page],) = pool.allocate()
            copies.append((old, table[page]))
        page += 1
    return copies
