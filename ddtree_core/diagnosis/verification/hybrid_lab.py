"""Draft trees through linear layers: the library's own forward, and the tree layers, against plain decoding.

A Gated-DeltaNet layer reads the nodes of a flattened tree one after another, whatever the attention mask
says. Masks and positions are right in all experiments here.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ddtree_core.models import Target
from ddtree_core.models.cache import RecurrentLayer
from ddtree_core.trees import DraftTree

SHAPES = ("chain", "star", "random", "wide")
FIRST_PATH, SIBLING, BELOW = "first path", "sibling of an earlier node", "below such a sibling"
FURTHER = 9  # tokens read behind the last commit, without trees


class TreeTarget(Target):
    """A target whose caches can be looked at."""

    @property
    def states(self) -> list[Tensor]:
        """Copies of the recurrent states and convolution inputs of all linear layers."""
        layers: list[Any] = [layer for layer in self._cache.layers if isinstance(layer, RecurrentLayer)]
        return [t.clone() for layer in layers for t in (layer.recurrent_states[0], layer.conv_states[0])]

    def keeps_states(self, tree: DraftTree) -> bool:
        """Whether verifying this tree leaves every state as it was, bit by bit; it must be committed then."""
        before = self.states
        self.verify(tree)
        return all(torch.equal(a, b) for a, b in zip(before, self.states, strict=True))

    @torch.inference_mode()
    def read_on(self, tokens: Int[Tensor, "m"]) -> Float[Tensor, "m vocab"]:
        """Logits of further tokens through the library's own forward, on the caches as commits left them."""
        return _steps(self.model, self._cache, tokens[None])[0]


class LibraryTarget(TreeTarget):
    """The same masks and positions over linear layers that are left as the library has them.

    They run over the nodes in order: on a tree that branches scores are silently wrong, and nothing can be
    committed.
    """

    def _tree_layers(self, tree: DraftTree) -> AbstractContextManager[None]:
        return nullcontext()


WAYS = {"library's layers": LibraryTarget, "tree layers": TreeTarget}


def shaped_tree(shape: str, nodes: int, vocab: int, generator: torch.Generator) -> DraftTree:
    """A tree with random tokens, all distinct, and its nodes depth first.

    `shape` is "chain", "star" (all below the root), "random" (each below any earlier one) or "wide" (four
    children each). Raises ValueError for another one, fewer than 2 nodes, or more nodes than tokens.
    """
    if shape not in SHAPES or not 2 <= nodes <= vocab:
        raise ValueError(
            f"cannot make a tree {shape!r} of {nodes} nodes; expected one of {', '.join(SHAPES)} and 2 to "
            f"{vocab} nodes"
        )
    parents, depths = [-1], [0]
    for node in range(1, nodes):
        earlier = int(torch.randint(node, (1,), generator=generator))
        parents.append({"chain": node - 1, "star": 0, "random": earlier, "wide": (node - 1) // 4}[shape])
        depths.append(depths[parents[-1]] + 1)
    tokens = torch.randperm(vocab, generator=generator)[:nodes]
    tree = DraftTree(tokens, torch.tensor(parents), torch.tensor(depths), torch.zeros(nodes))
    return tree.reordered("dfs")[0]


@torch.inference_mode()
def sequential_logits(
    model: PreTrainedModel, history: Sequence[int], tree: DraftTree
) -> Float[Tensor, "N vocab"]:
    """Logits of every node as plain decoding gives them: `history` at once, then root paths token by token.

    All by the library's own forward. The paths to the leaves are rows of one batch; they cover every node.
    """
    paths, cache = _leaf_paths(tree), DynamicCache(config=model.config)
    model(input_ids=torch.tensor([list(history)] * len(paths)), cache=cache, use_cache=True)
    return _of_nodes(_steps(model, cache, _padded(tree, paths)), paths, len(tree))


@torch.inference_mode()
def whole_logits(model: PreTrainedModel, history: Sequence[int], tree: DraftTree) -> Float[Tensor, "N vocab"]:
    """The same with history and root path read at once: as far as the library is from itself."""
    paths = _leaf_paths(tree)
    ids = torch.cat([torch.tensor([list(history)] * len(paths)), _padded(tree, paths)], dim=1)
    logits = model(input_ids=ids, use_cache=False).logits[:, len(history) :]
    return _of_nodes(logits, paths, len(tree))


def _leaf_paths(tree: DraftTree) -> list[list[int]]:
    return [tree.path(node) for node in range(len(tree)) if not tree.children(node)]


def _padded(tree: DraftTree, paths: list[list[int]]) -> Int[Tensor, "leaves depth"]:
    """Padded on the right, where a causal model never looks."""
    return nn.utils.rnn.pad_sequence([tree.token_ids[path] for path in paths], batch_first=True)


def _steps(model: Any, cache: Any, ids: Int[Tensor, "rows m"]) -> Float[Tensor, "rows m vocab"]:
    made = [model(input_ids=tokens, cache=cache, use_cache=True).logits for tokens in ids.split(1, dim=1)]
    return torch.cat(made, dim=1)


def _of_nodes(logits: Tensor, paths: list[list[int]], nodes: int) -> Float[Tensor, "N vocab"]:
    found = {node: logits[row, depth] for row, path in enumerate(paths) for depth, node in enumerate(path)}
    return torch.stack([found[node] for node in range(nodes)])


def place(tree: DraftTree, node: int) -> str:
    """Where a node stands in order: behind its ancestors alone, at the top of a later branch, or below it."""
    if len(tree.path(node)) == node + 1:
        return FIRST_PATH
    return BELOW if int(tree.parents[node]) == node - 1 else SIBLING


def node_errors(
    model: PreTrainedModel, history: Sequence[int], tree: DraftTree, number: int = 0
) -> list[dict[str, Any]]:
    """One row per node and way of reading the tree: how far its logits are from those of plain decoding.

    `error` is the largest difference, `other_token` whether the greedy token is another one, `spread` the
    standard deviation of all right logits; `number` tells the rows of several trees apart.
    """
    right, rows = sequential_logits(model, history, tree), []
    for layers, kind in WAYS.items():
        target = kind(model)
        target.prefill(torch.tensor(history))
        got = target.verify(tree).logits
        errors, other = (got - right).abs().amax(-1), got.argmax(-1) != right.argmax(-1)
        rows += [
            {
                "tree": number,
                "node": node,
                "parent": int(tree.parents[node]),
                "depth": int(tree.depths[node]),
                "place": place(tree, node),
                "layers": layers,
                "error": float(errors[node]),
                "other_token": bool(other[node]),
                "spread": float(right.std()),
            }
            for node in range(len(tree))
        ]
    return rows


def check_session(model: PreTrainedModel, shape: str, nodes: int, seed: int = 0) -> dict[str, Any]:
    """Verify and commit twice, then read 9 tokens without trees: largest logit errors against plain decoding.

    `kept by …` tells whether a verify left the states of linear layers as they were. `floor` is
    the library against itself on the first tree: root paths read at once or token by token.
    """
    vocab, generator = model.config.vocab_size, torch.Generator().manual_seed(seed)
    history = torch.randint(vocab, (25,), generator=generator).tolist()
    targets = {layers: kind(model) for layers, kind in WAYS.items()}
    for target in targets.values():
        target.prefill(torch.tensor(history))
    first, second = (shaped_tree(shape, nodes, vocab, generator) for _ in range(2))
    row: dict[str, Any] = {
        f"kept by {layers}": target.keeps_states(first) for layers, target in targets.items()
    }
    target = targets["tree layers"]
    target.commit([])
    for stage, tree in (("verify", first), ("after commit", second)):
        right = sequential_logits(model, history, tree)
        row[stage] = _largest_difference(target.verify(tree).logits, right)
        if tree is first:
            row["floor"] = _largest_difference(whole_logits(model, history, tree), right)
        path = tree.path(int(torch.randint(nodes // 2, nodes, (1,), generator=generator)))
        target.commit(path)
        history += tree.token_ids[path].tolist()
    further = shaped_tree("chain", FURTHER, vocab, generator)
    right = sequential_logits(model, history, further)
    row["further tokens"] = _largest_difference(target.read_on(further.token_ids), right)
    return {"shape": shape, "nodes": nodes} | row


def _largest_difference(got: Tensor, right: Tensor) -> float:
    return float((got - right).abs().max())
