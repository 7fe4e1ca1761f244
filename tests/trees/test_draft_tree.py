"""DraftTree: its invariants, its ancestor mask, its orders, its text."""

import dataclasses

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from ddtree_core.trees import DraftTree


def fields(**changes) -> dict[str, torch.Tensor]:
    """Root 7 with children 3 and 5; below 3 the tokens 9 and 5."""
    tree = {
        "token_ids": torch.tensor([7, 3, 5, 9, 5]),
        "parents": torch.tensor([-1, 0, 0, 1, 1]),
        "depths": torch.tensor([0, 1, 1, 2, 2]),
        "log_probs": torch.tensor([0.0, -0.5, -1.0, -0.75, -2.5]),
    }
    return tree | {name: torch.as_tensor(value) for name, value in changes.items()}


def random_parents(nodes: int, spread: int, seed: int) -> np.ndarray:
    """Each parent drawn from the last `spread` nodes before the child: 1 gives a chain, many a bush."""
    rng = np.random.default_rng(seed)
    parents = [rng.integers(max(0, node - spread), node) for node in range(1, nodes)]
    return np.array([-1, *parents])


def test_counts_paths_children_and_text():
    tree = DraftTree(**fields())
    assert len(tree) == tree.num_nodes == 5
    assert [tree.path(node) for node in range(5)] == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4]]
    assert [tree.children(node) for node in range(5)] == [[1, 2], [3, 4], [], [], []]
    assert str(tree) == "0: 7 (0.00)\n  1: 3 (-0.50)\n    3: 9 (-0.75)\n    4: 5 (-2.50)\n  2: 5 (-1.00)"
    assert tree.to_text("<{}>".format).splitlines()[1] == "  1: <3> (-0.50)"
    assert repr(tree) == "DraftTree(num_nodes=5, device='cpu')"


@pytest.mark.parametrize("node", [-1, 5])
def test_unknown_node_is_one_sentence(node):
    tree = DraftTree(**fields())
    sentence = f"^node {node} is not in this tree: expected an index from 0 to 4$"
    for ask in (tree.path, tree.children):
        with pytest.raises(ValueError, match=sentence):
            ask(node)


def test_root_only():
    tree = DraftTree.root_only(42)
    assert (tree.token_ids.tolist(), tree.parents.tolist(), tree.depths.tolist()) == ([42], [-1], [0])
    assert tree.log_probs.tolist() == [0.0]
    assert tree.ancestor_mask.tolist() == [[True]]


def test_to_keeps_the_tree_or_moves_all_of_it():
    tree = DraftTree(**fields())
    assert tree.to("cpu") is tree
    moved = tree.to("meta")
    tensors = (moved.token_ids, moved.parents, moved.depths, moved.log_probs, moved.ancestor_mask)
    assert {tensor.device.type for tensor in tensors} == {moved.device.type} == {"meta"}
    assert moved.ancestor_mask.shape == (5, 5)
    assert tree.device.type == tree.ancestor_mask.device.type == "cpu"


def test_orders_by_hand():
    """10 with the children 11 and 12; 13 and 15 below 11, 14 below 12, in the order of their probability."""
    tree = DraftTree(
        token_ids=torch.tensor([10, 11, 12, 13, 14, 15]),
        parents=torch.tensor([-1, 0, 0, 1, 2, 1]),
        depths=torch.tensor([0, 1, 1, 2, 2, 2]),
        log_probs=torch.tensor([0.0, -0.5, -1.0, -1.5, -2.0, -2.5]),
    )
    breadth, nodes = tree.reordered("bfs")
    assert nodes == [0, 1, 2, 3, 5, 4]  # level by level, the children of one parent together
    assert breadth.token_ids.tolist() == [10, 11, 12, 13, 15, 14]
    assert breadth.parents.tolist() == [-1, 0, 0, 1, 1, 2]
    assert breadth.log_probs.tolist() == [0.0, -0.5, -1.0, -1.5, -2.5, -2.0]
    depth, nodes = tree.reordered("dfs")
    assert nodes == [0, 1, 3, 5, 2, 4]
    assert depth.parents.tolist() == [-1, 0, 1, 1, 0, 4]
    assert depth.depths.tolist() == [0, 1, 2, 2, 1, 2]
    with pytest.raises(ValueError, match=r"^unknown order 'xyz': expected 'bfs' or 'dfs'$"):
        tree.reordered("xyz")


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DraftTree(**fields()).depths = torch.zeros(5)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("nodes", "spread"), [(1, 1), (2, 1), (9, 1), (40, 1), (40, 5), (129, 129)])
def test_ancestor_mask_is_what_walking_up_finds(nodes, spread):
    parents = random_parents(nodes, spread, seed=nodes + spread)
    depths, expected = np.zeros(nodes, dtype=int), np.eye(nodes, dtype=bool)
    for node in range(1, nodes):
        depths[node] = depths[parents[node]] + 1
        ancestor = node
        while (ancestor := parents[ancestor]) >= 0:
            expected[node, ancestor] = True
    tree = DraftTree(
        token_ids=torch.arange(nodes),
        parents=torch.from_numpy(parents),
        depths=torch.from_numpy(depths),
        log_probs=torch.zeros(nodes),
    )
    assert np.array_equal(tree.ancestor_mask.numpy(), expected)
    assert tree.ancestor_mask is tree.ancestor_mask  # made once


BROKEN = {
    "root": (fields(parents=[0, 0, 0, 1, 1]), "its root: parent -1, depth 0"),
    "root depth": (fields(depths=[1, 2, 2, 3, 3]), "its root: parent -1, depth 0"),
    "second root": (fields(parents=[-1, 0, -1, 1, 1]), "parents must come before children"),
    "own parent": (fields(parents=[-1, 0, 0, 3, 1]), "parents must come before children"),
    "later parent": (fields(parents=[-1, 2, 0, 1, 1]), "parents must come before children"),
    "parent beyond": (fields(parents=[-1, 0, 0, 1, 9]), "parents must come before children"),
    "depth": (fields(depths=[0, 1, 1, 2, 3]), "depths must grow by one"),
    "negative token": (fields(token_ids=[7, 3, 5, -9, 5]), "token ids of a draft tree must not be negative"),
    "siblings": (fields(token_ids=[7, 3, 3, 9, 5]), "siblings must carry distinct tokens"),
    "NaN": (fields(log_probs=[0.0, -0.5, float("nan"), -1.0, -2.0]), "must not be NaN"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_invariant_is_one_sentence(case):
    broken, sentence = BROKEN[case]
    with pytest.raises(ValueError, match=sentence) as error:
        DraftTree(**broken)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"depths": torch.tensor([0, 1, 1])}, "four tensors of one shape"),
        ({name: tensor[:0] for name, tensor in fields().items()}, "N >= 1"),
        ({name: tensor[None] for name, tensor in fields().items()}, "four tensors of one shape"),
        ({"parents": fields()["parents"].int()}, "expected int64"),
        ({"log_probs": torch.zeros(5, dtype=torch.int64)}, "floating log_probs"),
        ({"depths": torch.zeros(5, dtype=torch.int64, device="meta")}, "built on the CPU"),
    ],
)
def test_layout_is_one_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        DraftTree(**(fields() | changes))


def test_bfloat16_log_probs_and_equal_tokens_below_different_parents_are_fine():
    tree = DraftTree(**fields(log_probs=fields()["log_probs"].bfloat16()))  # token 5 occurs twice
    assert tree.log_probs.dtype == torch.bfloat16


def test_shape_annotations_are_enforced(monkeypatch):
    monkeypatch.setattr(DraftTree, "__init__", DraftTree.__init__)  # jaxtyped replaces it, pytest restores it
    typed = jaxtyped(typechecker=beartype)(DraftTree)
    tree = typed(**fields())
    with pytest.raises(TypeCheckError):
        typed(**fields(depths=[0, 1, 1]))
    mask = jaxtyped(typechecker=beartype)(DraftTree.ancestor_mask.func)  # pyright: ignore[reportAttributeAccessIssue]
    assert mask(tree).shape == (5, 5)
