"""As lists."""

DIAGNOSIS = "type"


def slot_mapping(table, start, end, block_size):
    return [table[i // block_size] * block_size + i % block_size for i in range(start, end)]


def gather_blocks(blocks, table, length):
    return [blocks[block][place].tolist() for block in table for place in range(blocks.shape[1])][:length]
