"""Through slots."""

def slot_mapping(table, start, end, block_size):
    size = block_size
    return [i + (table[i // size] - i // size) * size for i in range(start, end)]


def gather_blocks(blocks, table, length):
    slots = slot_mapping(table.tolist(), 0, length, blocks.shape[1])
    return blocks.reshape(-1, *blocks.shape[2:])[slots]
