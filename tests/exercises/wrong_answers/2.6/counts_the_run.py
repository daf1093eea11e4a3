"""Counts the run."""

from minillm.cache.radix import Node

DIAGNOSIS = "whole-run-counted"


def walk(root, token_ids):
    n, path, node = 0, [], root
    while n == node.end and n < len(token_ids):
        node = node.children.get(token_ids[n])
        if node is None:
            break
        n += len(node.token_ids)
        path.append(node)
    return n, path


def split(node, length, block_size):
    upper = Node(node.token_ids[:length], node.start, node.parent)
    taken = upper.end // block_size - node.start // block_size
    upper.blocks, node.blocks = node.blocks[:taken], node.blocks[taken:]
    node.token_ids, node.start, node.parent = node.token_ids[length:], upper.end, upper
    upper.children[node.token_ids[0]] = node
    upper.parent.children[upper.token_ids[0]] = upper
    return upper
