"""Where the nodes of a draft tree stand: depth across, leaf order down, parents centred on their children."""

from typing import NamedTuple

from ddtree_core.trees.draft_tree import DraftTree

# A subtree with several leaves stands a little apart from its neighbours, so that families are seen as such.
_FAMILY_GAP = 1.35


class Place(NamedTuple):
    """A node's place: `column` is its depth; `row` counts from 0 down, one row being a box and its gap."""

    column: int
    row: float


def layout(tree: DraftTree, bonus_parent: int | None = None) -> list[Place]:
    """Places of all nodes by node index, and of a bonus token after the node `bonus_parent` as the last one.

    Siblings stand by falling probability, the bonus token before them. Leaves take rows in order, a parent is
    centred between its first and last child: subtrees occupy disjoint rows, and boxes never overlap.
    """
    parents, log_probs, depths = tree.parents.tolist(), tree.log_probs.tolist(), tree.depths.tolist()
    children: list[list[int]] = [[] for _ in parents]
    for node in sorted(range(1, len(parents)), key=lambda node: (-log_probs[node], node)):
        children[parents[node]].append(node)
    if bonus_parent is not None:
        children[bonus_parent].insert(0, len(parents))
        parents, depths = [*parents, bonus_parent], [*depths, depths[bonus_parent] + 1]
        children.append([])

    order, stack = [], [0]  # parents before children, first child first; a stack because chains can be deep
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(children[order[-1]]))
    leaves = [1] * len(parents)
    for node in reversed(order):
        leaves[node] = sum(leaves[child] for child in children[node]) or 1

    rows, row, elder = [0.0] * len(parents), 0.0, {}
    for siblings in children:
        elder.update(zip(siblings[1:], siblings, strict=False))
    for node in order:
        if node in elder:
            row += _FAMILY_GAP if max(leaves[node], leaves[elder[node]]) > 1 else 1.0
        rows[node] = row
    for node in reversed(order):
        if children[node]:
            rows[node] = (rows[children[node][0]] + rows[children[node][-1]]) / 2
    return [Place(depth, row) for depth, row in zip(depths, rows, strict=True)]
