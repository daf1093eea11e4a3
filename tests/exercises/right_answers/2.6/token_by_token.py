"""Token by token."""

from minillm.cache.radix import Node


def walk(root, token_ids):
    n, path, node, inside = 0, [], root, 0
    for token in token_ids:
        if inside == len(node.token_ids):
            if token not in node.children:
                break
            node, inside = node.children[token], 0
            path.append(node)
        elif node.token_ids[inside] != token:
            break
        inside, n = inside + 1, n + 1
    return n, path


def split(node, length, block_size):
    cut = node.start + length
    upper = Node(parent=node.parent, start=node.start, token_ids=list(node.token_ids[:length]))
    upper.parent.children.update({node.token_ids[0]: upper})
    pages = [page for page in range(node.start // block_size, cut // block_size)]
    for _ in pages:
        upper.blocks.append(node.blocks.pop(0))
    del node.token_ids[:length]
    node.start = cut
    node.parent = upper
    upper.children = {node.token_ids[0]: node}
    return upper
