"""With the end."""

DIAGNOSIS = "end-included"


def slot_mapping(table, start, end, block_size):
    slots = []
    while start <= end:
        slots.append(table[start // block_size] * block_size + start % block_size)
        start += 1
    return slots


def gather_blocks(blocks, table, length):
    pages = blocks[table]
    return pages.flatten(0, 1)[:length]
