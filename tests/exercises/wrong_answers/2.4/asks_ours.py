"""Asks ours."""

from minillm.cache import paged

DIAGNOSIS = "forbidden"


def slot_mapping(table, start, end, block_size):
    return paged.slot_mapping(table, start, end, block_size)


def gather_blocks(blocks, table, length):
    pages = blocks[table]
    return pages.flatten(0, 1)[:length]
