"""By recursion."""

from minillm.cache.radix import Node, common_length


def walk(root, token_ids):
    child = root.children.get(token_ids[0]) if len(token_ids) else None
    if child is None:
        return 0, []
    common = common_length(child.token_ids, token_ids)
    if common < len(child.token_ids):
        return common, [child]
    n, path = walk(child, token_ids[common:])
    return common + n, [child, *path]


def split(node, length, block_size):
    ends = [page for page in range(node.start // block_size, node.end // block_size + 1)
            if (page + 1) * block_size <= node.start + length]
    upper = Node(node.token_ids[:length], node.start, node.parent, node.blocks[: len(ends)])
    node.parent.children[node.token_ids[0]] = upper
    node.blocks = node.blocks[len(ends) :]
    node.token_ids = node.token_ids[length:]
    node.start += length
    node.parent, upper.children = upper, {node.token_ids[0]: node}
    return upper
