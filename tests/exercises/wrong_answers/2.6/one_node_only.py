"""One node only."""

from minillm.cache.radix import Node, common_length

DIAGNOSIS = "only-one-node"


def walk(root, token_ids):
    node = root.children.get(token_ids[0]) if token_ids else None
    if node is None:
        return 0, []
    return common_length(node.token_ids, token_ids), [node]


def split(node, length, block_size):
    upper = Node(node.token_ids[:length], node.start, node.parent)
    taken = upper.end // block_size - node.start // block_size
    upper.blocks, node.blocks = node.blocks[:taken], node.blocks[taken:]
    node.token_ids, node.start, node.parent = node.token_ids[length:], upper.end, upper
    upper.children[node.token_ids[0]] = node
    upper.parent.children[upper.token_ids[0]] = upper
    return upper
