"""The two acceptance rules: worked examples, an independent walk, and what must hold between them."""

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from ddtree_core.trees import RULES, Acceptance, DraftTree, linear_chain, tree_walk

R, A, B, C, D, E, X = range(10, 17)


def make(tokens: list[int], parents: list[int]) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return DraftTree(
        token_ids=torch.tensor(tokens),
        parents=torch.tensor(parents),
        depths=torch.tensor(depths),
        log_probs=torch.zeros(len(tokens)),
    )


# Flattened trees and the target's choice at each node. The linear results are those of vLLM's own greedy
# rejection kernel on the same input (versions 0.18 to 0.32), the walks follow from the definition.
# (tokens, parents, target tokens) → emitted tokens by linear_chain, by tree_walk
EXAMPLES = {
    "E1": ([R, A, B], [-1, 0, 0], [B, X, X], [B], [B, X]),
    "E2 breadth first": ([R, A, B, C, D], [-1, 0, 0, 1, 2], [A, C, X, E, X], [A, C], [A, C, E]),
    "E2 depth first": ([R, A, C, B, D], [-1, 0, 1, 0, 3], [A, C, E, X, X], [A, C, E], [A, C, E]),
    "E3 depth first": ([R, A, C, B, D], [-1, 0, 1, 0, 3], [B, X, X, D, E], [B], [B, D, E]),
    "E4 tree-masked logits": ([R, A, B], [-1, 0, 0], [A, B, X], [A, B, X], [A, B]),
    "E4 as a chain": ([R, A, B], [-1, 0, 1], [A, B, C], [A, B, C], [A, B, C]),
}


@pytest.mark.parametrize("case", EXAMPLES)
def test_worked_examples(case):
    tokens, parents, target, linear, walked = EXAMPLES[case]
    tree, target = make(tokens, parents), torch.tensor(target)
    assert linear_chain(tree, target).tokens(tree) == linear
    assert tree_walk(tree, target).tokens(tree) == walked


def test_linear_chain_follows_the_flattened_order_not_the_tree():
    """E4: it accepts B after A, though B is A's sibling, and so takes a bonus that A never conditioned."""
    tree = make([R, A, B], [-1, 0, 0])
    assert linear_chain(tree, torch.tensor([A, B, X])) == Acceptance(path=[0, 1, 2], bonus=X)
    assert tree_walk(tree, torch.tensor([A, B, X])) == Acceptance(path=[0, 1], bonus=B)


def test_length_counts_the_bonus():
    assert Acceptance(path=[0, 4, 9], bonus=3).length == 3
    assert tree_walk(DraftTree.root_only(R), torch.tensor([A])) == Acceptance(path=[0], bonus=A)
    assert linear_chain(DraftTree.root_only(R), torch.tensor([A])) == Acceptance(path=[0], bonus=A)


def draw(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high, (1,), generator=generator))


def random_tree(nodes: int, vocab: int, generator: torch.Generator) -> DraftTree:
    """Random parents; siblings get distinct tokens because a node with `vocab` children takes no more."""
    tokens, parents, taken = [R], [-1], [set()]
    while len(tokens) < nodes:
        parent, token = draw(0, len(tokens), generator), draw(0, vocab, generator)
        if token not in taken[parent]:
            taken[parent].add(token)
            taken.append(set())
            tokens.append(token)
            parents.append(parent)
    return make(tokens, parents)


def plain_walk(tree: DraftTree, target: list[int]) -> Acceptance:
    tokens, parents = tree.token_ids.tolist(), tree.parents.tolist()
    child = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    path = [0]
    while (path[-1], target[path[-1]]) in child:
        path.append(child[path[-1], target[path[-1]]])
    return Acceptance(path=path, bonus=target[path[-1]])


def plain_linear(tree: DraftTree, target: list[int]) -> Acceptance:
    path = [0]
    for node, token in enumerate(tree.token_ids.tolist()[1:], start=1):
        if token != target[node - 1]:
            break
        path.append(node)
    return Acceptance(path=path, bonus=target[path[-1]])


def test_random_trees_against_plain_walks():
    generator = torch.Generator().manual_seed(0)
    walked = []
    for _ in range(300):
        nodes, vocab = draw(1, 60, generator), draw(2, 5, generator)
        tree = random_tree(nodes, vocab, generator)
        target = torch.randint(vocab, (nodes,), generator=generator)
        accepted = tree_walk(tree, target)
        assert accepted == plain_walk(tree, target.tolist())
        assert linear_chain(tree, target) == plain_linear(tree, target.tolist())
        assert accepted.path == tree.path(accepted.path[-1])  # a path of the tree, root first
        walked.append(accepted.length)
    assert max(walked) >= 6  # long paths did occur


def test_walk_accepts_at_least_the_chain_that_the_tree_contains():
    """Nodes 1..6 are a chain below the root; whatever hangs beside it can only add to what is accepted."""
    generator = torch.Generator().manual_seed(1)
    gains = []
    for _ in range(300):
        vocab, depth = 4, 6
        line = torch.randint(vocab, (depth,), generator=generator).tolist()
        chain = make([R, *line], list(range(-1, depth)))
        tokens, parents, taken = [R, *line], list(range(-1, depth)), {(i, line[i]) for i in range(depth)}
        for _ in range(20):
            parent, token = draw(0, len(tokens), generator), draw(0, vocab, generator)
            if (parent, token) not in taken:
                taken.add((parent, token))
                parents.append(parent)
                tokens.append(token)
        tree = make(tokens, parents)
        target = torch.randint(vocab, (len(tree),), generator=generator)
        # A node of the chain has the same context in both, so the target chooses the same there.
        alone = tree_walk(chain, target[: depth + 1])
        assert alone == linear_chain(chain, target[: depth + 1])  # on a chain the rules agree
        gains.append(tree_walk(tree, target).length - alone.length)
    assert min(gains) == 0
    assert max(gains) > 0


@pytest.mark.parametrize("rule", RULES.values())
@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_one_target_token_per_node(rule, shape):
    tree = make([R, A, B], [-1, 0, 0])
    with pytest.raises(ValueError, match=r"^expected one target token for each of the tree's 3 nodes, got"):
        rule(tree, torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("rule", RULES.values())
def test_results_are_plain_integers_whatever_the_dtype(rule):
    tree = make([R, A, B], [-1, 0, 0])
    accepted = rule(tree, torch.tensor([A, X, X], dtype=torch.int32))
    assert accepted == Acceptance(path=[0, 1], bonus=X)
    assert {type(value) for value in (*accepted.path, accepted.bonus)} == {int}


@pytest.mark.parametrize("rule", RULES.values())
def test_shape_annotations_are_enforced(rule):
    typed = jaxtyped(typechecker=beartype)(rule)
    tree = make([R, A, B], [-1, 0, 0])
    assert typed(tree, torch.tensor([A, X, X])).length == 2
    with pytest.raises(TypeCheckError):
        typed(tree, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(TypeCheckError):
        typed(tree, torch.zeros(3))
