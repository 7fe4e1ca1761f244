"""The batched walk against `tree_walk`: both of its forms, on every device at hand, and the compaction index.

The Triton form runs natively where there is a GPU. Everywhere else the tests run once more in a process of
their own, under Triton's interpreter, which must be chosen before triton is imported.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped
from transformers import LlamaConfig

from ddtree_core.models.cache import keep_path, new_cache
from ddtree_core.trees import Acceptance, DraftTree, tree_walk
from ddtree_core.trees.batch_walk import BatchAcceptance, CompactionIndex, compaction_index, walk_batch

R, A, B, C, D, E, X = range(10, 17)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_TRITON = find_spec("triton") is not None
INSTALL = "triton is not installed; install it with: pip install ddtree-core[vllm-diagnosis]"

FORMS = [("torch", "cpu")]
if HAS_TRITON and INTERPRETED:
    FORMS.append(("triton", "cpu"))
if torch.cuda.is_available():
    FORMS += [("torch", "cuda")] + [("triton", "cuda")] * (HAS_TRITON and not INTERPRETED)
every_form = pytest.mark.parametrize(("backend", "device"), FORMS)
every_form_on_cpu = pytest.mark.parametrize("backend", [form for form, device in FORMS if device == "cpu"])


@pytest.mark.skipif(INTERPRETED, reason="this is the process with the interpreter")
def test_interpreter():
    """The Triton form, in its interpreter, passes the tests of this file."""
    if not HAS_TRITON:
        pytest.skip(INSTALL)
    command = [sys.executable, "-m", "pytest", __file__, "-k", "triton", "-q", "-p", "no:xdist"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@dataclass
class Batch:
    """Trees and the target's token at each of their nodes, and how they look in a flat call."""

    trees: list[DraftTree]
    targets: list[torch.Tensor]

    def flat(self, device: str = "cpu") -> dict[str, Any]:
        sizes = torch.tensor([0, *map(len, self.trees)])
        tensors = {
            "token_ids": torch.cat([tree.token_ids for tree in self.trees]),
            "parents": torch.cat([tree.parents for tree in self.trees]),
            "cu_nodes": sizes.cumsum(0),
            "target_tokens": torch.cat(self.targets),
        }
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    def walks(self) -> list[Acceptance]:
        return [tree_walk(*pair) for pair in zip(self.trees, self.targets, strict=True)]

    @property
    def deepest(self) -> int:
        return max(int(tree.depths.max()) for tree in self.trees)


def walk(batch: Batch, backend: Any, device: str, max_length: int | None = None) -> BatchAcceptance:
    """Where a GPU runs it, any wait for the GPU is an error."""
    flat = batch.flat(device)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        return walk_batch(**flat, max_length=max_length, backend=backend)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def make(tokens: list[int], parents: list[int]) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    integers = (torch.tensor(values) for values in (tokens, parents, depths))
    return DraftTree(*integers, log_probs=torch.zeros(len(tokens)))


def shape_of(parents: list[int]) -> DraftTree:
    return make(list(range(len(parents))), parents)


def random_parents(rng: random.Random) -> list[int]:
    """A chain of depth 15, a star, a lone root, or a tree of up to 40 nodes in one of three orders."""
    nodes = rng.randint(2, 40)
    match rng.randrange(6):
        case 0:
            return list(range(-1, 15))
        case 1:
            return [-1] + [0] * nodes
        case 2:
            return [-1]
    parents = [-1] + [rng.randrange(max(0, node - rng.choice([2, 8, 40])), node) for node in range(1, nodes)]
    order = rng.choice(["as drawn", "bfs", "dfs"])
    return parents if order == "as drawn" else shape_of(parents).reordered(order)[0].parents.tolist()


def labelled(parents: list[int], rng: random.Random) -> tuple[DraftTree, torch.Tensor]:
    """Tokens from a small alphabet, distinct among siblings; the target often chooses one of the children."""
    tokens, target = [rng.randrange(3)] * len(parents), [0] * len(parents)
    shape = shape_of(parents)
    for node in range(len(parents)):
        children = shape.children(node)
        alphabet = max(3, len(children))
        for child, token in zip(children, rng.sample(range(alphabet), len(children)), strict=True):
            tokens[child] = token
        follow = children and rng.random() < 0.8
        target[node] = tokens[rng.choice(children)] if follow else rng.randrange(alphabet)
    return make(tokens, parents), torch.tensor(target)


def random_batch(rng: random.Random) -> Batch:
    pairs = [labelled(random_parents(rng), rng) for _ in range(rng.randint(1, 6))]
    return Batch(*map(list, zip(*pairs, strict=True)))


def random_batches(backend: str, device: str) -> Iterator[Batch]:
    """Few for the interpreter, which takes milliseconds per tree."""
    rng = random.Random(0)
    for _ in range(40 if (backend, device) == ("triton", "cpu") else 2000):
        yield random_batch(rng)


# What vLLM's linear rule makes of these is tested with `linear_chain`; the walks follow from the definition.
# (tokens, parents, target tokens, accepted nodes, bonus)
EXAMPLES = [
    ("E1", [R, A, B], [-1, 0, 0], [B, X, X], [0, 2], X),
    ("E2 breadth first", [R, A, B, C, D], [-1, 0, 0, 1, 2], [A, C, X, E, X], [0, 1, 3], E),
    ("E2 depth first", [R, A, C, B, D], [-1, 0, 1, 0, 3], [A, C, E, X, X], [0, 1, 2], E),
    ("E3 depth first", [R, A, C, B, D], [-1, 0, 1, 0, 3], [B, X, X, D, E], [0, 3, 4], E),
    ("E4 tree-masked logits", [R, A, B], [-1, 0, 0], [A, B, X], [0, 1], B),
    ("E4 as a chain", [R, A, B], [-1, 0, 1], [A, B, C], [0, 1, 2], C),
    ("a lone root", [R], [-1], [X], [0], X),
]
EXAMPLE_BATCH = Batch(
    [make(tokens, parents) for _, tokens, parents, *_ in EXAMPLES],
    [torch.tensor(target) for _, _, _, target, *_ in EXAMPLES],
)


@every_form
def test_worked_examples_in_one_batch(backend, device):
    accepted = walk(EXAMPLE_BATCH, backend, device, max_length=4)
    for (name, *_, path, bonus), got in zip(EXAMPLES, accepted.to_list(), strict=True):
        assert (name, got) == (name, Acceptance(path, bonus))
    assert accepted.nodes.tolist() == [path + [-1] * (4 - len(path)) for *_, path, _ in EXAMPLES]
    for tensor in (accepted.nodes, accepted.lengths, accepted.bonus):
        assert (tensor.dtype, tensor.device.type) == (torch.int64, device)


@every_form
def test_random_batches_equal_the_single_walk(backend, device):
    lengths: set[int] = set()
    for batch in random_batches(backend, device):
        walks = batch.walks()
        for max_length in (None, batch.deepest + 1):
            assert walk(batch, backend, device, max_length).to_list() == walks
        lengths |= {len(one.path) for one in walks}
    assert lengths >= set(range(1, 12))  # long paths did occur


@every_form
def test_paths_hang_together_and_go_on_to_the_end(backend, device):
    for batch in islice(random_batches(backend, device), 40):
        accepted = walk(batch, backend, device, max_length=batch.deepest + 3)
        assert accepted.nodes.shape == (len(batch.trees), batch.deepest + 3)
        for request, (tree, target) in enumerate(zip(batch.trees, batch.targets, strict=True)):
            path, padded = accepted.to_list()[request].path, accepted.nodes[request].tolist()
            assert path == tree.path(path[-1])
            assert padded == path + [-1] * (len(padded) - len(path))
            assert tree.token_ids[path[1:]].tolist() == target[path[:-1]].tolist()
            bonus = int(accepted.bonus[request])
            assert bonus == target[path[-1]]
            assert bonus not in tree.token_ids[tree.children(path[-1])].tolist()


@every_form
def test_order_of_the_nodes_does_not_matter(backend, device):
    """The same tree, nodes in three orders: the emitted tokens agree."""
    rng = random.Random(1)
    for _ in range(10):
        tree, target = labelled(random_parents(rng), rng)
        batch = Batch([tree], [target])
        for order in ("bfs", "dfs"):
            other, nodes = tree.reordered(order)
            batch.trees.append(other)
            batch.targets.append(target[nodes])
        emitted = {
            tuple(accepted.tokens(one))
            for one, accepted in zip(batch.trees, walk(batch, backend, device).to_list(), strict=True)
        }
        assert len(emitted) == 1


@every_form
def test_large_trees(backend, device):
    """More nodes than the kernel compares at once: a chain, and a star whose last leaf is chosen."""
    size = 300
    line, star = (
        make([0] * size, list(range(-1, size - 1))),
        make([0, *range(1, size)], [-1] + [0] * (size - 1)),
    )
    spread = make(list(range(size)), [-1, *(max(0, node - 130) for node in range(1, size))])
    far = torch.zeros(size, dtype=torch.int64)
    far[0] = 130  # a child of the root, whose child is node 260, each in another block of 128 nodes
    far[130] = 260
    targets = [torch.zeros(size, dtype=torch.int64), torch.full((size,), size - 1), far]
    paths = [one.path for one in walk(Batch([line, star, spread], targets), backend, device).to_list()]
    assert paths == [list(range(size)), [0, size - 1], [0, 130, 260]]


@every_form
@pytest.mark.parametrize("max_length", [1, 2, 3, 5, 16, 17])
def test_longer_paths_are_cut(backend, device, max_length):
    """A cut path is a shorter acceptance: its bonus is what the target chose after its last node."""
    rng = random.Random(2)
    batch = Batch([make([0] * 17, list(range(-1, 16)))], [torch.arange(17) // 16])  # accepts all, then 1
    for _ in range(3):
        more = random_batch(rng)
        batch = Batch(batch.trees + more.trees, batch.targets + more.targets)
    wanted = []
    for one, target in zip(batch.walks(), batch.targets, strict=True):
        path = one.path[:max_length]
        wanted.append(Acceptance(path, int(target[path[-1]])))
    assert len(wanted[0].path) == max_length
    assert walk(batch, backend, device, max_length).to_list() == wanted


@every_form
def test_no_requests(backend, device):
    nothing, offsets = torch.empty(0, dtype=torch.int64, device=device), torch.tensor([0], device=device)
    accepted = walk_batch(nothing, nothing, offsets, nothing, max_length=4, backend=backend)
    assert accepted.nodes.shape == (0, 4)
    assert accepted.lengths.shape == accepted.bonus.shape == (0,)
    assert compaction_index(accepted, nothing).source.shape == (0, 4)
    assert walk_batch(nothing, nothing, offsets, nothing, backend=backend).to_list() == []


@every_form
def test_integers_of_either_width_and_any_stride(backend, device):
    flat = EXAMPLE_BATCH.flat(device)
    for name in flat:
        narrow = torch.stack((flat[name].int(), flat[name].int() + 1), dim=1)[:, 0]  # stride 2
        accepted = walk_batch(**{**flat, name: narrow}, backend=backend)
        assert accepted.to_list() == EXAMPLE_BATCH.walks()
        assert accepted.bonus.dtype == torch.int64


@pytest.mark.parametrize("max_length", [None, 4])
def test_off_the_cpu_nothing_is_read_back(max_length):
    """Meta tensors have no elements, so any read of one, or a shape that depends on one, would fail."""
    accepted = walk_batch(**EXAMPLE_BATCH.flat("meta"), max_length=max_length)
    index = compaction_index(accepted, torch.zeros(7, dtype=torch.int64, device="meta"))
    width = max_length or 25 - 6  # 25 nodes, of which 6 requests have at least their roots
    for tensor in (accepted.nodes, index.source, index.destination):
        assert (tensor.shape, tensor.device.type) == ((7, width), "meta")
    assert accepted.lengths.shape == accepted.bonus.shape == (7,)


# --- the compaction index


def moved(buffer: torch.Tensor, index: CompactionIndex) -> torch.Tensor:
    """All rows read, then written: buffer (requests, rows, dim)."""
    source, destination = (
        i[..., None].expand(-1, -1, buffer.shape[2]) for i in (index.source, index.destination)
    )
    return buffer.scatter(1, destination, buffer.gather(1, source))


def moved_one_by_one(buffer: torch.Tensor, index: CompactionIndex) -> torch.Tensor:
    """Row after row, in ascending order along the path, in place."""
    buffer = buffer.clone()
    requests = torch.arange(len(buffer), device=buffer.device)
    for source, destination in zip(index.source.T, index.destination.T, strict=True):
        buffer[requests, destination] = buffer[requests, source]
    return buffer


@every_form
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_compaction_keeps_what_keep_path_keeps(backend, device, dtype):
    rng = random.Random(3)
    for _ in range(10):
        batch = random_batch(rng)
        histories = [rng.randint(0, 20) for _ in batch.trees]
        accepted = walk(batch, backend, device, max_length=batch.deepest + 2)
        index = compaction_index(accepted, torch.tensor(histories, dtype=dtype, device=device))
        rows = max(history + len(tree) for history, tree in zip(histories, batch.trees, strict=True))
        buffer = torch.randn(len(histories), rows, 2, device=device)
        compact = moved(buffer, index)
        assert torch.equal(compact, moved_one_by_one(buffer, index))
        for request, one in enumerate(batch.walks()):
            history, end = histories[request], histories[request] + len(batch.trees[request])
            cache = new_cache(LlamaConfig(num_hidden_layers=1))
            rows_of_one = buffer[request, :end][None, None]
            cache.update(rows_of_one, rows_of_one, 0)
            keep_path(cache, history, one.path)
            layer: Any = cache.layers[0]
            assert layer.keys.shape[2] == history + one.length
            assert torch.equal(compact[request, : history + one.length], layer.keys[0, 0])
            assert torch.equal(compact[request, end:], buffer[request, end:])  # nothing behind the tree


def test_compaction_index_of_an_example():
    """E2 breadth first accepts nodes 0, 1, 3; a lone root stays where it is."""
    chosen = Batch([EXAMPLE_BATCH.trees[i] for i in (1, 6)], [EXAMPLE_BATCH.targets[i] for i in (1, 6)])
    index = compaction_index(walk(chosen, "torch", "cpu", max_length=5), torch.tensor([100, 7]))
    assert index.source.tolist() == [[100, 101, 103, 103, 103], [7] * 5]
    assert index.destination.tolist() == [[100, 101, 102, 102, 102], [7] * 5]


@pytest.mark.parametrize(
    ("histories", "sentence"),
    [
        (
            torch.zeros(6, dtype=torch.int64),
            r"history on cpu for each of 7 requests, got torch.int64 of shape \(6,\)",
        ),
        (torch.zeros(7), "expected one int32 or int64 history"),
        (torch.zeros(7, dtype=torch.int64, device="meta"), r"got torch.int64 of shape \(7,\) on meta$"),
        (torch.full((7,), -1), "^histories must not be negative: they count committed positions$"),
    ],
)
def test_bad_histories_are_one_sentence(histories, sentence):
    with pytest.raises(ValueError, match=sentence):
        compaction_index(walk(EXAMPLE_BATCH, "torch", "cpu"), histories)


# --- bad input

OFFSETS = "^cu_nodes must start at 0, end at the number of nodes, and grow by 1 or more "
PARENTS = "^each request needs its root first "
TWO: dict[str, Any] = {  # two requests of 3 nodes and 1 node
    "token_ids": torch.tensor([R, A, B, R]),
    "parents": torch.tensor([-1, 0, 0, -1]),
    "cu_nodes": torch.tensor([0, 3, 4]),
    "target_tokens": torch.tensor([B, X, X, X]),
}


@every_form_on_cpu
@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("cu_nodes", [1, 3, 4], OFFSETS),
        ("cu_nodes", [0, 3, 3], OFFSETS),
        ("cu_nodes", [0, 0, 4], OFFSETS),
        ("cu_nodes", [0, 3, 5], OFFSETS),
        ("cu_nodes", [0, 9, 4], OFFSETS),
        ("cu_nodes", [0, -1, 4], OFFSETS),
        ("cu_nodes", [0, 3], OFFSETS),
        ("cu_nodes", [0], OFFSETS),
        ("parents", [-1, 0, 0, 0], PARENTS),
        ("parents", [0, 0, 0, -1], PARENTS),
        ("parents", [-2, 0, 0, -1], PARENTS),
        ("parents", [-1, -1, 0, -1], PARENTS),
        ("parents", [-1, 1, 0, -1], PARENTS),
        ("parents", [-1, 2, 0, -1], PARENTS),
        ("parents", [-1, 0, 2, -1], PARENTS),
        ("parents", [-1, 0, 2**33, -1], PARENTS),
    ],
)
def test_wrong_offsets_and_parents_are_one_sentence(backend, name, values, sentence):
    with pytest.raises(ValueError, match=sentence):
        walk_batch(**{**TWO, name: torch.tensor(values)}, max_length=3, backend=backend)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"parents": torch.tensor([-1, 0, 0])},
            r"^token_ids, parents and .* got \[\(4,\), \(3,\), \(4,\)\]$",
        ),
        ({"token_ids": torch.zeros(4, 1, dtype=torch.int64)}, "must have one shape"),
        (
            {"cu_nodes": torch.tensor([[0, 4]])},
            r"^cu_nodes must have the shape \(requests \+ 1,\).* got \(1, 2\)$",
        ),
        ({"cu_nodes": torch.empty(0, dtype=torch.int64)}, "^cu_nodes must have the shape"),
        ({"cu_nodes": torch.arange(6)}, "with a root for each request among the 4 nodes"),
        ({"token_ids": torch.zeros(4)}, r"^expected int32 or int64 tensors, got \[torch.float32, "),
        ({"target_tokens": torch.zeros(4, dtype=torch.bool)}, "^expected int32 or int64 tensors"),
        ({"parents": TWO["parents"].to("meta")}, "^a batch lives on one device, got"),
        ({"max_length": 0}, "^max_length must be 1 or more, because every path holds its root: got 0$"),
        ({"backend": "cuda"}, '^unknown backend \'cuda\': expected "auto", "triton" or "torch"$'),
    ],
)
def test_wrong_shapes_and_options_are_one_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        walk_batch(**{**TWO, **change})


def test_without_triton_its_backend_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)  # as if not installed
    monkeypatch.delitem(sys.modules, "ddtree_core.trees.triton_walk", raising=False)
    sentence = r'^backend "triton" needs triton, which is not installed: .* "ddtree-core\[vllm-diagnosis\]"$'
    with pytest.raises(ValueError, match=sentence):
        walk_batch(**TWO, backend="triton")
    assert walk_batch(**TWO).to_list() == [Acceptance([0, 2], X), Acceptance([0], X)]


@pytest.mark.skipif(not HAS_TRITON or INTERPRETED, reason=INSTALL + ", and leave TRITON_INTERPRET unset")
def test_a_native_kernel_wants_a_gpu():
    with pytest.raises(
        ValueError, match=r'^backend "triton" needs tensors on a GPU, got cpu: .*TRITON_INTERPRET=1'
    ):
        walk_batch(**TWO, backend="triton")


def test_shape_annotations_are_enforced():
    typed = jaxtyped(typechecker=beartype)(walk_batch)
    accepted = typed(**TWO)
    assert accepted.lengths.tolist() == [2, 1]
    with pytest.raises(TypeCheckError):
        typed(**{**TWO, "parents": torch.tensor([-1, 0, 0])})
    with pytest.raises(TypeCheckError):
        typed(**{**TWO, "token_ids": torch.zeros(4)})
    indexed = jaxtyped(typechecker=beartype)(compaction_index)
    with pytest.raises(TypeCheckError):
        indexed(accepted, torch.zeros(2, 1, dtype=torch.int64))
