"""Tree building: the reference trees, a heap, brute force, the tie rule, impossible tokens, bad input."""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from ddtree_core.trees import MAX_BUDGET, DraftTree, best_first, chain
from tests.trees import heap_reference

ROOT = 999
INF = float("inf")
GOLDEN = np.load(Path(__file__).parents[1] / "data" / "draft_trees.npz")
CASES = sorted({key.split("/")[0] for key in GOLDEN.files})


def root_paths(token_ids, parents) -> list[tuple[int, ...]]:
    """Tokens from below the root down to each node, the root first with ()."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(token_ids, parents[1:], strict=True):
        paths.append((*paths[parent], int(token)))
    return paths


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    return root_paths(tree.token_ids[1:].tolist(), tree.parents.tolist())


def path_log_probs(paths: list[tuple[int, ...]], logits: torch.Tensor) -> torch.Tensor:
    """Summed in float64, from the definition."""
    table = logits.double().log_softmax(-1).numpy()
    return torch.tensor([sum(float(table[i, token]) for i, token in enumerate(path)) for path in paths])


def random_logits(generator: torch.Generator, max_vocab: int) -> tuple[torch.Tensor, int]:
    """Logits (depth, vocab) from flat to peaked, and a budget."""
    depth, vocab, budget = (
        int(torch.randint(1, high + 1, (1,), generator=generator)) for high in (12, max_vocab, 120)
    )
    scale = 6 * torch.rand((depth, 1), generator=generator)
    return scale * torch.randn(depth, vocab, generator=generator), budget


@pytest.mark.parametrize("case", CASES)
def test_reference_trees(case):
    """Made with the method's reference builder: token ids, depths and parents, and packed ancestor masks."""
    keys = ("logits", "budget", "token_ids", "parents", "visibility")
    data = {key: GOLDEN[f"{case}/{key}"] for key in keys}
    logits, budget = torch.from_numpy(data["logits"]), int(data["budget"])
    tree = best_first(ROOT, logits, budget)
    expected = root_paths(data["token_ids"], data["parents"])
    paths = paths_of(tree)
    assert set(paths) == set(expected)
    assert len(paths) == len(expected)
    torch.testing.assert_close(tree.log_probs, path_log_probs(paths, logits).float(), rtol=0, atol=1e-5)

    size = len(expected)
    visible = np.unpackbits(data["visibility"])[: size * size].reshape(size, size).astype(bool)
    order = [expected.index(path) for path in paths]
    assert np.array_equal(tree.ancestor_mask.numpy(), visible[np.ix_(order, order)])


@pytest.mark.parametrize("max_vocab", [9, 300, 5000])
def test_random_logits_against_the_heap(max_vocab):
    """Small vocabularies exhaust themselves; large ones put columns into groups, with columns left over."""
    generator = torch.Generator().manual_seed(max_vocab)
    for _ in range(150):
        logits, budget = random_logits(generator, max_vocab)
        tree = best_first(ROOT, logits, budget)
        expected = heap_reference.build(ROOT, logits, budget).root_paths()
        paths = paths_of(tree)[1:]
        assert set(paths) == set(expected)
        heap = torch.tensor([expected[path] for path in paths])
        torch.testing.assert_close(tree.log_probs[1:], heap, rtol=0, atol=1e-4)  # its log-sum-exp is float32
        torch.testing.assert_close(
            tree.log_probs[1:], path_log_probs(paths, logits).float(), rtol=1e-6, atol=1e-5
        )


def test_large_budgets_against_the_heap():
    """Undecided drafters make wide trees, confident ones deep trees."""
    generator = torch.Generator().manual_seed(5)
    for budget, confidence in ((300, 0.0), (512, 6.0), (1024, 12.0)):
        logits = 2 * torch.randn(15, 3000, generator=generator)
        logits[:, 17] += confidence
        tree = best_first(ROOT, logits, budget)
        assert set(paths_of(tree)[1:]) == set(heap_reference.build(ROOT, logits, budget).root_paths())


def test_brute_force_over_every_prefix():
    """Prefixes of up to 4 of 3 tokens, sorted by float64 log-probability: a tree is the first of them."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(40):
        logits = 2 * torch.randn(4, 3, generator=generator)
        prefixes = [prefix for length in range(1, 5) for prefix in product(range(3), repeat=length)]
        assert len(prefixes) == 3 + 9 + 27 + 81
        values = path_log_probs(prefixes, logits)
        ranking = [prefixes[i] for i in values.argsort(descending=True).tolist()]
        for budget in (1, 2, 5, 17, 64, 119, 120, 500):
            assert paths_of(best_first(ROOT, logits, budget))[1:] == ranking[:budget]


def test_nodes_come_in_order_of_log_probability():
    logits, budget = random_logits(torch.Generator().manual_seed(3), 200)
    log_probs = best_first(ROOT, logits, budget).log_probs
    assert (log_probs[1:] <= log_probs[:-1]).all()


# ties


def test_equal_tokens_go_by_column_and_equal_prefixes_by_parent():
    """Four tokens of probability 1/4 at each of two positions: log 1/4 four times, then log 1/16."""
    tree = best_first(ROOT, torch.zeros(2, 4), 10)
    assert tree.token_ids.tolist() == [ROOT, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert tree.parents.tolist() == [-1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_probability_one_puts_parents_before_children():
    """Log-probabilities of 0 all down a chain: by score alone the nodes could come in any order."""
    for certain in (torch.tensor([-INF, 0.0, -INF]), torch.tensor([-500.0, 500.0, -500.0])):
        logits = certain.repeat(7, 1)
        tree = best_first(ROOT, logits, 7)
        assert tree.token_ids.tolist() == [ROOT] + [1] * 7
        assert tree.parents.tolist() == list(range(-1, 7))
        assert tree.log_probs.tolist() == [0.0] * 8
        assert best_first(ROOT, logits, 3).depths.tolist() == [0, 1, 2, 3]


def test_shallower_goes_first():
    """p = 1/2, 1/2, then certainty: (0), (1), (0 0), (1 0) all have 1/2; depth decides, then the parent."""
    logits = torch.tensor([[0.0, 0.0], [0.0, -INF]])
    tree = best_first(ROOT, logits, 4)
    assert paths_of(tree) == [(), (0,), (1,), (0, 0), (1, 0)]
    assert paths_of(best_first(ROOT, logits, 3)) == [(), (0,), (1,), (0, 0)]


def test_tie_rule_against_a_heap_with_the_same_rule():
    """Integer logits, the same at each position: prefixes tie by the dozen, whatever the order of adding.

    The heap pops ties by depth, parent and rank; its log-probabilities are multiples of 2^-36, so its sums
    are exact. Confident drafters and float64 logits, with more digits than sums can hold, must tie as well.
    """
    generator = torch.Generator().manual_seed(4)
    for trial in range(200):
        depth, vocab, budget = (
            int(torch.randint(1, high, (1,), generator=generator)) for high in (7, 12, 90)
        )
        logits = (3 * torch.randn(vocab, generator=generator)).round()
        logits[0] += 20 * (trial % 2)
        logits = logits.to((torch.float32, torch.float64)[trial % 3 // 2])
        best = logits.double().log_softmax(-1).max().mul(2**36).round() / 2**36
        ranked = (logits.double() - logits.max() + best).sort(descending=True, stable=True)
        rows = ([ranked.values.tolist()] * depth, [ranked.indices.tolist()] * depth)
        expected = heap_reference.select(ROOT, *rows, budget)
        tree = best_first(ROOT, logits.expand(depth, vocab), budget)
        assert tree.token_ids.tolist() == expected.token_ids
        assert tree.parents.tolist() == expected.parents


# impossible tokens


def test_masked_vocabulary_leaves_only_possible_prefixes():
    """2 tokens possible at each of 3 positions: 2 + 4 + 8 prefixes, whatever the budget."""
    logits = torch.full((3, 50), -INF)
    logits[:, 7], logits[:, 30] = 1.0, 0.0
    tree = best_first(ROOT, logits, 40)
    assert len(tree) == 1 + 2 + 4 + 8
    assert set(tree.token_ids[1:].tolist()) == {7, 30}
    assert torch.isfinite(tree.log_probs).all()
    assert paths_of(best_first(ROOT, logits, 5)) == paths_of(tree)[:6]


def test_position_without_possible_token_ends_the_tree():
    logits = torch.zeros(3, 4)
    logits[1] = -INF
    assert best_first(ROOT, logits, 50).depths.tolist() == [0, 1, 1, 1, 1]
    assert len(best_first(ROOT, logits[1:], 50)) == 1
    assert chain(ROOT, logits).depths.tolist() == [0, 1]
    assert len(chain(ROOT, logits[1:])) == 1


# the greedy chain


def test_chain_is_the_greedy_prefix():
    logits, _ = random_logits(torch.Generator().manual_seed(7), 400)
    tree = chain(ROOT, logits)
    depth = len(logits)
    assert tree.token_ids.tolist() == [ROOT, *logits.argmax(1).tolist()]
    assert tree.parents.tolist() == list(range(-1, depth))
    assert tree.depths.tolist() == list(range(depth + 1))
    expected = logits.double().log_softmax(-1).amax(1).cumsum(0)
    torch.testing.assert_close(tree.log_probs[1:].double(), expected, rtol=0, atol=1e-5)


def test_best_first_holds_the_chain_as_far_as_the_budget_may_reach_it():
    """The most probable prefix of each length is the greedy one; a confident drafter has all of them kept."""
    logits = torch.randn(7, 100, generator=torch.Generator().manual_seed(8))
    logits[:, 11] += 12
    assert set(paths_of(chain(ROOT, logits))) <= set(paths_of(best_first(ROOT, logits, 20)))


# inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype):
    logits = (3 * torch.randn(5, 60, generator=torch.Generator().manual_seed(9))).to(dtype)
    tree = best_first(ROOT, logits, 30)
    assert tree.log_probs.dtype == torch.float32
    expected = path_log_probs(paths_of(tree), logits).float()
    torch.testing.assert_close(tree.log_probs, expected, rtol=0, atol=1e-5)
    assert chain(ROOT, logits).token_ids[1:].tolist() == logits.argmax(1).tolist()


def test_vocabulary_names_the_columns():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(10))
    vocabulary = torch.tensor([100, 50, 70, 20, 10, 90], dtype=torch.int32)
    for plain, named in (
        (best_first(ROOT, logits, 12), best_first(ROOT, logits, 12, vocabulary)),
        (chain(ROOT, logits), chain(ROOT, logits, vocabulary)),
    ):
        assert named.token_ids[1:].tolist() == vocabulary[plain.token_ids[1:]].tolist()
        assert torch.equal(named.parents, plain.parents)


def test_strided_logits_that_want_gradients_inside_and_outside_inference_mode():
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(11))
    expected = paths_of(best_first(ROOT, logits.T.contiguous(), 25))
    before = logits.clone()
    with torch.inference_mode():
        assert paths_of(best_first(ROOT, logits.T, 25)) == expected
    assert paths_of(best_first(ROOT, logits.requires_grad_().T, 25)) == expected
    assert torch.equal(logits, before)


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_small_budgets_and_no_depth(budget):
    assert len(best_first(ROOT, torch.randn(8, 20), budget)) == budget + 1
    assert len(best_first(ROOT, torch.zeros(0, 20), budget)) == 1
    assert len(chain(ROOT, torch.zeros(0, 20))) == 1


@pytest.mark.parametrize("poison", [float("nan"), INF])
@pytest.mark.parametrize("builder", [chain, lambda root, logits: best_first(root, logits, 8)])
@pytest.mark.parametrize("vocab", [5, 4001])
def test_nan_and_infinite_logits_are_one_sentence(poison, builder, vocab):
    for column in (0, vocab // 2, vocab - 1):
        logits = torch.zeros(3, vocab)
        logits[1, column] = poison
        with pytest.raises(ValueError, match=r"^draft logits must not be NaN or \+inf: [^.\n]*$"):
            builder(ROOT, logits)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget": -1}, f"budget must be from 0 to {MAX_BUDGET} draft nodes, got -1"),
        ({"budget": MAX_BUDGET + 1}, "budget must be from 0"),
        ({"draft_logits": torch.zeros(5)}, "shape \\(depth, vocab\\)"),
        ({"draft_logits": torch.zeros(1, 2, 5)}, "shape \\(depth, vocab\\)"),
        ({"draft_logits": torch.zeros(2, 0)}, "shape \\(depth, vocab\\)"),
        ({"draft_logits": torch.zeros(2, 5, dtype=torch.int64)}, "floating-point"),
        ({"vocabulary": torch.arange(4)}, "one integer token id for each of the 5 columns"),
        ({"vocabulary": torch.zeros(5)}, "one integer token id"),
        ({"vocabulary": torch.arange(5, device="meta")}, "move one of them"),
        ({"root": -3}, "token ids of a draft tree must not be negative"),
    ],
)
def test_bad_input_is_one_sentence(change, sentence):
    good = {"root": 1, "draft_logits": torch.zeros(2, 5), "budget": 3}
    with pytest.raises(ValueError, match=sentence) as error:
        best_first(**(good | change))
    assert "\n" not in str(error.value)


def test_shape_annotations_are_enforced():
    typed_best_first = jaxtyped(typechecker=beartype)(best_first)
    typed_chain = jaxtyped(typechecker=beartype)(chain)
    builders = (partial(typed_best_first, ROOT, budget=3), partial(typed_chain, ROOT))
    for builder in builders:
        assert isinstance(builder(torch.zeros(2, 5), vocabulary=torch.arange(5)), DraftTree)
        with pytest.raises(TypeCheckError):
            builder(torch.zeros(2, 5), vocabulary=torch.arange(4))
        with pytest.raises(TypeCheckError):
            builder(torch.zeros(5))
