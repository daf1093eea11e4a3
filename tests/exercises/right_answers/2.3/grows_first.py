"""Grows first."""

def make_writable(pool, table, start, end):
    before = len(table)
    for _ in range(pool.blocks_for(end) - before):
        table.append(pool.allocate(1)[0])
    copies = []
    for page, block in enumerate(table[:before]):
        if page < start // pool.block_size or not (pool.refs[block] > 1 or block in pool.cached):
            continue
        table[page] = pool.allocate()[0]
        copies.append([block, table[page]])
        pool.release([block])
    return copies
