"""What the linear rule and the walk emit, on worked cases and on rounds of a real pair."""

from itertools import pairwise

import pytest
import torch

from ddtree_core.decoding import generate
from ddtree_core.diagnosis.vllm import rules
from ddtree_core.trees import tree_walk

# Linear rule and walk (R root, X any other token): the worked cases as the real kernels gave them.
EXPECTED = {
    "E1, siblings": ("B", "B X"),
    "E2, breadth first": ("A C", "A C E"),
    "E2, depth first": ("A C E", "A C E"),
    "E3, path through B": ("B", "B D E"),
    "E4, tree mask": ("A B X", "A B"),
    "E4, causal mask": ("A B C", "A B"),
}


@pytest.mark.parametrize("name", rules.CASES)
def test_worked_cases(name):
    tree, chosen = rules.case_tree(name), rules.CASES[name][2]
    emitted = tuple(rules.spell(rules.emitted(rule, tree, chosen)) for rule in ("linear", "walk"))
    assert emitted == EXPECTED[name]


def test_the_batched_walk_agrees():
    assert {n: rules.spell(t) for n, t in rules.walk_cases().items()} == {
        name: walk for name, (_, walk) in EXPECTED.items()
    }


def test_rounds_of_a_real_pair(tiny_pair):
    made = generate(tiny_pair("tiny-llama"), "Once upon", "ddtree", budget=12, max_new_tokens=16)
    rows = rules.compare_rules(made.rounds)
    assert [r["accepted"] + 1 for r in rows if r["rule"] == "walk"] == made.acceptance_lengths
    for one in made.rounds:
        tree, chosen = rules.reordered_round(one, "dfs")
        walk = tree_walk(tree, torch.tensor(chosen))
        assert rules.emitted("walk", tree, chosen) == rules.emitted("walk", one.tree, one.target_tokens)
        path = rules.linear_path(one, "bfs")
        assert path[0] == 0
        assert all(int(one.tree.parents[b]) == a for a, b in pairwise(path))
        assert walk.length == one.acceptance_length
