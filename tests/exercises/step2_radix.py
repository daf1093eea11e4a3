"""The check of 2.6. A reader runs it with: minillm check 2.6"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from minillm.cache.radix import Node, common_length
from minillm.course.checks import Case, Check, Mistake

# 2.6

Tree = dict[tuple[int, ...], Any]
TREE: Tree = {(5, 6, 7, 8): {(9, 9): {}, (1,): {}, (5, 4): {}}, (2, 3): {}}


def grown(tree: Tree, parent: Node) -> Node:
    """Hang a tree, given as {tokens: what is below them}, below a node."""
    for token_ids, below in tree.items():
        parent.children[token_ids[0]] = grown(below, Node(list(token_ids), parent.end, parent))
    return parent


def drawn(tree: Tree) -> str:
    parts = [f"{list(tokens)}" + (f" ({drawn(below)} below it)" if below else "") for tokens, below in tree.items()]
    return " and ".join(parts) or "nothing"


def walk_cases() -> list[Case]:
    def case(about: str, tree: Tree, token_ids: list[int]) -> Case:
        return Case(about, {"tree": tree, "token_ids": token_ids},
                    f"below the root: {drawn(tree)}; token_ids={token_ids}", "walk")

    return [
        case("an empty tree", {}, [1, 2]),
        case("all of one node", {(2, 3): {}}, [2, 3]),
        case("no node begins like that", {(2, 3): {}}, [3, 2]),
        case("the text goes on behind the node", {(2, 3): {}}, [2, 3, 4]),
        case("the text ends inside a node", {(5, 6, 7, 8): {}}, [5, 6]),
        case("the text leaves a node in its middle", {(5, 6, 7, 8): {}}, [5, 6, 1]),
        case("two nodes", TREE, [5, 6, 7, 8, 9, 9, 4]),
        case("into the other branch", TREE, [5, 6, 7, 8, 1]),
        case("it leaves a node, and goes on like one of its children", TREE, [5, 6, 1]),
        case("the second node is left in its middle", TREE, [5, 6, 7, 8, 9, 5]),
        case("no token", TREE, []),
    ]


def split_cases() -> list[Case]:
    def case(about: str, token_ids: list[int], length: int, block_size: int, blocks: list[int], before: int = 0,
             children: Sequence[int] = ()) -> Case:
        args = {"token_ids": token_ids, "blocks": blocks, "before": before, "children": list(children),
                "length": length, "block_size": block_size}
        shown = f"node {token_ids} from position {before} on, blocks {blocks}"
        shown += f", children that begin with {list(children)}" if children else ""
        return Case(about, args, f"{shown}; length={length}, block_size={block_size}", "split")

    return [
        case("between two blocks of one token", [5, 6], 1, 1, [10, 11]),
        case("between two blocks of two tokens", [5, 6, 7, 8], 2, 2, [10, 11]),
        case("inside the second page", [5, 6, 7, 8], 3, 2, [10, 11]),
        case("inside the first page", [5, 6, 7, 8], 1, 2, [10, 11]),
        case("a node with children", [5, 6, 7, 8], 2, 2, [10, 11], children=[3, 4]),
        case("a node further down", [5, 6, 7, 8], 2, 2, [10, 11], before=4),
        case("a node that begins inside a page", [5, 6, 7, 8], 3, 2, [10, 11, 12], before=1),
        case("a page ends in the node that began before it", [5, 6, 7, 8, 9], 1, 4, [10, 11], before=3, children=[2]),
    ]


def use_tree(function: Callable[..., Any], **args: Any) -> Any:
    return walked(function, **args) if "tree" in args else cut(function, **args)


def walked(function: Callable[..., Any], tree: Tree, token_ids: list[int]) -> Any:
    """(tokens found, the runs of the nodes on the path); the root, which has no run, as "root"."""
    found = function(grown(tree, Node([], 0, None)), list(token_ids))
    if not isinstance(found, (list, tuple)) or len(found) != 2 or not isinstance(found[1], (list, tuple)):
        return found
    n, path = found
    return n, [named(node) for node in path]


def named(node: Any) -> Any:
    if not isinstance(node, Node):
        return node
    return list(node.token_ids) if node.parent is not None else "root"


def cut(function: Callable[..., Any], token_ids: list[int], blocks: list[int], before: int, children: list[int],
        length: int, block_size: int) -> Any:
    """The two halves in words, and whether the nodes around them point to the right ones."""
    root = Node([], 0, None)
    parent = root if before == 0 else Node([1] * before, 0, root)
    sibling, node = Node([0], before, parent), Node(list(token_ids), before, parent, list(blocks))
    parent.children = {0: sibling, token_ids[0]: node}
    node.children = {token: Node([token], node.end, node) for token in children}
    below = dict(node.children)
    upper = function(node, length, block_size)
    if not isinstance(upper, Node):
        return upper
    halves = [f"{which}: {list(half.token_ids)} from {half.start} on, blocks {list(half.blocks)}"
              for which, half in (("new", upper), ("old", node))]
    return *halves, links(parent, upper, node, {0: sibling}, below)


def links(parent: Node, upper: Node, node: Node, siblings: dict[int, Node], below: dict[int, Node]) -> str:
    """The first thing that points to the wrong node, if there is one."""
    if upper is node:
        return "the old node came back, not a new one"
    if upper.parent is not parent or node.parent is not upper:
        return "a node's parent is wrong"
    first = upper.token_ids[0] if upper.token_ids else None
    if parent.children != {**siblings, first: upper}:
        return "the parent's children are wrong"
    if upper.children != {node.token_ids[0] if node.token_ids else None: node}:
        return f"the new node has children that begin with {list(upper.children)}"
    return "links right" if node.children == below else "the old node's children are wrong"


def walk(root: Node, token_ids: Sequence[int], *, whole: bool = False, on: bool = False, bounded: bool = True,
         from_n: bool = True, by_n: bool = True, length: bool = False, most: int = 99) -> tuple[int, list[Node]]:
    """walk with a switch for each mistake; it always ends."""
    n, path, node = 0, [], root
    while (on or n == node.end) and (not bounded or n < len(token_ids)) and len(path) < most:
        node = node.children.get(token_ids[n if by_n else 0])
        if node is None:
            break
        common = common_length(node.token_ids, token_ids[n if from_n else 0 :])
        if whole and common < len(node.token_ids):
            break
        n += len(node.token_ids) if length else common
        path.append(node)
    return n, path


def walks(**switches: Any) -> Callable[..., Any]:
    return lambda root, token_ids: walk(root, token_ids, **switches)


def with_root(root: Node, token_ids: Sequence[int]) -> tuple[int, list[Node]]:
    n, path = walk(root, token_ids)
    return n, [root, *path]


def without_the_last(root: Node, token_ids: Sequence[int]) -> tuple[int, list[Node]]:
    """A node in which the text ends or leaves is counted, but not on the path."""
    n, path = walk(root, token_ids)
    return n, path[:-1] if path and n < path[-1].end else path


def split(node: Node, length: int, block_size: int, *, taken: Callable[..., int] | None = None, move: bool = True,
          place: bool = True, key: str = "rest", known: bool = True, children: bool = False,
          old: bool = False) -> Node:
    """split with a switch for each mistake."""
    upper = Node(node.token_ids[:length], node.start, node.parent)
    first = node.start // block_size
    count = upper.end // block_size - first if taken is None else taken(node, length, block_size)
    upper.blocks, node.blocks = node.blocks[:count], node.blocks[count:]
    rest = node.token_ids[length:]
    if children:
        upper.children, node.children = node.children, {}
    if key != "none":
        upper.children[(rest if key == "rest" else node.token_ids)[0]] = node
    if place:
        node.parent.children[upper.token_ids[0]] = upper
    if known:
        node.parent = upper
    node.token_ids = rest
    if move:
        node.start = upper.end
    return node if old else upper


def splits(**switches: Any) -> Callable[..., Node]:
    return lambda node, length, block_size: split(node, length, block_size, **switches)


def all_blocks_twice(node: Node, length: int, block_size: int) -> Node:
    blocks = list(node.blocks)
    upper = split(node, length, block_size)
    upper.blocks, node.blocks = blocks, list(blocks)
    return upper


WALKING = (
    Mistake(
        "goes-on-inside-a-node",
        "A child begins where its parent's run ends: a text that leaves a run in its middle has no way on from there.",
        like=walks(on=True),
    ),
    Mistake(
        "whole-nodes-only",
        "A text may end or leave inside a run: what it has in common with the run counts, and the node is on the path.",
        like=walks(whole=True),
    ),
    Mistake(
        "node-missing",
        "The node in which the text ends or leaves is on the path too: some of the n tokens are in it.",
        like=without_the_last,
    ),
    Mistake("root-on-the-path", "The path begins below the root, which holds no token.", like=with_root),
    Mistake(
        "whole-run-counted",
        "Only what the run and the text have in common is found: compare before you count (common_length).",
        like=walks(length=True),
    ),
    Mistake(
        "whole-run-counted",
        "Only what the run and the text have in common is found: compare before you count (common_length).",
        like=walks(length=True, bounded=False),
    ),
    Mistake(
        "compared-from-the-beginning",
        "The second node's run is compared with what is left of the text, from token n on.",
        like=walks(from_n=False),
    ),
    Mistake(
        "first-token-again",
        "Below the first node the child is found by token n of the text, not by its first token.",
        like=walks(by_n=False),
    ),
    Mistake(
        "only-one-node",
        "A text can go on from node to node: a loop is missing, or ends too early.",
        like=walks(most=1),
    ),
    Mistake(
        "past-the-end",
        "When the text ends where a node ends, there is no token n: look before you take it.",
        like=walks(bounded=False),
    ),
)
SPLITTING = (
    Mistake(
        "blocks-by-length",
        "Pages are counted from the beginning of the text, not of the node: which of them end at or before upper.end?",
        like=splits(taken=lambda node, length, size: length // size),
    ),
    Mistake(
        "blocks-of-the-whole-text",
        "Pages before node.start // block_size belong to nodes above: subtract them.",
        like=splits(taken=lambda node, length, size: (node.start + length) // size),
    ),
    Mistake(
        "page-taken-too-early",
        "A page belongs to the node in which it ends: one that is cut stays with the lower node.",
        like=splits(taken=lambda node, length, size: -(-(node.start + length) // size) - node.start // size),
    ),
    Mistake(
        "blocks-as-many-as-tokens",
        "There is one block a page, not one a token.",
        like=splits(taken=lambda node, length, size: length),
    ),
    Mistake(
        "blocks-not-divided",
        "The upper node takes the blocks of the pages that end in it, and the lower one keeps the others.",
        like=splits(taken=lambda node, length, size: 0),
    ),
    Mistake(
        "blocks-not-divided",
        "Every block has one owner: what the upper node takes, the lower one has no longer.",
        like=all_blocks_twice,
    ),
    Mistake("start-stays", "The old node starts later now, where the upper one ends.", like=splits(move=False)),
    Mistake(
        "not-in-its-place",
        "Whoever comes from above must meet the new node: put it among the parent's children.",
        like=splits(place=False),
    ),
    Mistake(
        "found-by-the-old-token",
        "The old node begins with another token now: that is the key under which its new parent finds it.",
        like=splits(key="old"),
    ),
    Mistake(
        "nothing-below",
        "The old node hangs below the new one: it has to be among its children.",
        like=splits(key="none"),
    ),
    Mistake(
        "old-parent-kept",
        "The old node's parent is the new node now.",
        like=splits(known=False),
    ),
    Mistake(
        "children-moved",
        "What hung below the old node still does: only the old node itself hangs below the new one.",
        like=splits(children=True),
    ),
    Mistake("old-node-returned", "Return the new node, the upper one.", like=splits(old=True)),
)

RADIX = Check(
    "2.6",
    lambda: [*walk_cases(), *split_cases()],
    call=use_tree,
    mistakes=(
        *(replace(mistake, function="walk") for mistake in WALKING),
        *(replace(mistake, function="split") for mistake in SPLITTING),
    ),
)

CHECKS = (RADIX,)
