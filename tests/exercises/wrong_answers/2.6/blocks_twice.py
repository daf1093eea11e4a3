"""Blocks twice."""

from minillm.cache.radix import Node, common_length

DIAGNOSIS = "blocks-not-divided"


def walk(root, token_ids):
    n, path, node = 0, [], root
    while n == node.end and n < len(token_ids):
        node = node.children.get(token_ids[n])
        if node is None:
            break
        n += common_length(node.token_ids, token_ids[n:])
        path.append(node)
    return n, path


def split(node, length, block_size):
    upper = Node(node.token_ids[:length], node.start, node.parent)
    upper.blocks = list(node.blocks)
    node.token_ids, node.start, node.parent = node.token_ids[length:], upper.end, upper
    upper.children[node.token_ids[0]] = node
    upper.parent.children[upper.token_ids[0]] = upper
    return upper
