"""All at once."""

def make_writable(pool, table, start, end):
    first, last = start // pool.block_size, (end - 1) // pool.block_size
    pages = [page for page in range(first, min(last + 1, len(table))) if pool.is_shared(table[page])]
    old = [table[page] for page in pages]
    own = pool.allocate(len(pages))
    for page, block in zip(pages, own):
        table[page] = block
    pool.release(old)
    table.extend(pool.allocate(max(0, last + 1 - len(table))))
    return list(zip(old, own))
