"""The experiments on linear layers: trees and references by hand, and that they notice what is wrong."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from ddtree_core.diagnosis.verification import hybrid_lab
from ddtree_core.diagnosis.verification.hybrid_lab import (
    BELOW,
    FIRST_PATH,
    SIBLING,
    check_session,
    node_errors,
    place,
    sequential_logits,
    shaped_tree,
    whole_logits,
)
from ddtree_core.models import gated_delta_layers
from ddtree_core.models.cache import RecurrentLayer
from ddtree_core.models.tiny import tiny_config, tiny_target
from ddtree_core.trees import DraftTree

HISTORY = [5, 3, 8, 1, 7, 2, 9]


def tree_of(shape: str, nodes: int) -> DraftTree:
    return shaped_tree(shape, nodes, 200, torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def hybrid() -> PreTrainedModel:
    return tiny_target(tiny_config("qwen3_5"))


@pytest.mark.parametrize(
    ("shape", "parents"),
    [
        ("chain", [-1, 0, 1, 2, 3, 4, 5]),
        ("star", [-1, 0, 0, 0, 0, 0, 0]),
        ("wide", [-1, 0, 1, 1, 0, 0, 0]),  # four below the root, then two below the first of them
    ],
)
def test_shapes_by_hand(shape, parents):
    assert tree_of(shape, 7).parents.tolist() == parents


def test_a_random_tree_comes_from_its_generator():
    first, second, other = (
        shaped_tree("random", 40, 200, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert first.parents.tolist() == second.parents.tolist() != other.parents.tolist()
    assert first.token_ids.tolist() == second.token_ids.tolist()
    assert len(set(first.token_ids.tolist())) == 40


@pytest.mark.parametrize(("shape", "nodes"), [("bush", 8), ("chain", 1), ("star", 201)])
def test_a_tree_that_cannot_be_made(shape, nodes):
    with pytest.raises(ValueError, match=f"a tree '{shape}' of {nodes} nodes; expected one of chain, star"):
        tree_of(shape, nodes)


def test_places_by_hand():
    """Flattened: a path of 3, its end's sibling with a child, and a second child of the root."""
    parents = torch.tensor([-1, 0, 1, 1, 3, 0])
    tree = DraftTree(torch.arange(6), parents, torch.tensor([0, 1, 2, 2, 3, 1]), torch.zeros(6))
    expected = [FIRST_PATH, FIRST_PATH, FIRST_PATH, SIBLING, BELOW, SIBLING]
    assert [place(tree, node) for node in range(6)] == expected


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
@torch.inference_mode()
def test_references_are_the_model_on_single_sequences(kind):
    """Logits of size 3; rounding alone differs between reading at once and step by step."""
    model: Any = tiny_target(tiny_config(kind))
    tree = tree_of("random", 12)
    for node in range(12):
        ids = torch.tensor([[*HISTORY, *tree.token_ids[tree.path(node)].tolist()]])
        right = model(input_ids=ids, use_cache=False).logits[0, -1]
        for reference in (sequential_logits, whole_logits):
            got = reference(model, HISTORY, tree)[node]
            torch.testing.assert_close(got, right, rtol=0, atol=1e-4)


class TestNodeErrors:
    """Logits of size 3."""

    def test_a_chain_is_read_rightly_either_way(self, hybrid):
        rows = node_errors(hybrid, HISTORY, tree_of("chain", 10))
        assert {row["place"] for row in rows} == {FIRST_PATH}
        assert len(rows) == 20
        assert max(row["error"] for row in rows) <= 1e-4
        assert not any(row["other_token"] for row in rows)

    def test_siblings_are_read_wrongly_by_the_library(self, hybrid):
        """The root and its first child come first; each later child is read behind the ones before."""
        rows = node_errors(hybrid, HISTORY, tree_of("star", 6), number=3)
        errors = {(row["layers"], row["node"]): row["error"] for row in rows}
        assert all(errors["library's layers", node] <= 1e-4 for node in (0, 1))
        assert all(errors["library's layers", node] > 0.5 for node in range(2, 6))
        assert all(errors["tree layers", node] <= 1e-4 for node in range(6))
        assert [row["place"] for row in rows[:6]] == [FIRST_PATH] * 2 + [SIBLING] * 4
        assert {row["tree"] for row in rows} == {3}

    def test_other_tokens_and_spread(self, hybrid):
        tree = tree_of("random", 8)
        right = sequential_logits(hybrid, HISTORY, tree)
        target = hybrid_lab.LibraryTarget(hybrid)
        target.prefill(torch.tensor(HISTORY))
        chosen = target.verify(tree).logits.argmax(-1)
        rows = node_errors(hybrid, HISTORY, tree)[:8]
        assert [row["other_token"] for row in rows] == (chosen != right.argmax(-1)).tolist()
        assert rows[0]["spread"] == pytest.approx(float(right.std()))

    def test_attention_alone_needs_no_tree_layers(self):
        rows = node_errors(tiny_target(tiny_config("llama")), HISTORY, tree_of("wide", 9))
        assert [row["error"] for row in rows[:9]] == [row["error"] for row in rows[9:]]
        assert max(row["error"] for row in rows) <= 1e-4


class TestCheckSession:
    STAGES = ("verify", "floor", "after commit", "further tokens")

    @pytest.mark.parametrize("shape", hybrid_lab.SHAPES)
    def test_tree_layers_pass(self, hybrid, shape):
        row = check_session(hybrid, shape, 9)
        assert (row["shape"], row["nodes"]) == (shape, 9)
        assert max(row[stage] for stage in self.STAGES) <= 1e-4
        assert row["kept by tree layers"]
        assert not row["kept by library's layers"]

    def test_a_commit_that_moves_nothing_is_noticed(self, hybrid, monkeypatch):
        monkeypatch.setattr(RecurrentLayer, "keep_path", lambda self, path: setattr(self, "stash", None))
        row = check_session(hybrid, "random", 9)
        assert row["verify"] <= 1e-4
        assert row["after commit"] > 0.05
        assert row["further tokens"] > 0.05

    def test_a_verify_that_writes_is_noticed(self, hybrid, monkeypatch):
        def writing(state: Any, *rest: Any) -> Any:
            made = rule(state, *rest)
            state.mul_(1.001)
            return made

        rule = gated_delta_layers.tree_delta_rule
        monkeypatch.setattr(gated_delta_layers, "tree_delta_rule", writing)
        assert not check_session(hybrid, "random", 9)["kept by tree layers"]
