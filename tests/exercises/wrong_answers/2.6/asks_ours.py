"""Asks ours."""

from minillm.cache import radix
from minillm.cache.radix import Node

DIAGNOSIS = "forbidden"


def walk(root, token_ids):
    return radix.walk(root, token_ids)


def split(node, length, block_size):
    upper = Node(node.token_ids[:length], node.start, node.parent)
    taken = upper.end // block_size - node.start // block_size
    upper.blocks, node.blocks = node.blocks[:taken], node.blocks[taken:]
    node.token_ids, node.start, node.parent = node.token_ids[length:], upper.end, upper
    upper.children[node.token_ids[0]] = node
    upper.parent.children[upper.token_ids[0]] = upper
    return upper
