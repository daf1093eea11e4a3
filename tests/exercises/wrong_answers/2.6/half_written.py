"""Half written."""

from minillm.cache.radix import common_length

DIAGNOSIS = "not-written"


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
    raise NotImplementedError("exercise 2.6")
