"""vLLM's real kernels on draft trees, and the stand-in that runs them without Triton."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ddtree_core.diagnosis.vllm import triton_numpy, triton_worker
from ddtree_core.diagnosis.vllm.kernels import Kernel, KernelError, available_backends, execute, find_kernel
from ddtree_core.diagnosis.vllm.samplers import run_greedy, run_random, run_strict
from ddtree_core.diagnosis.vllm.source import VllmSource, obtain
from ddtree_core.diagnosis.vllm.triton_numpy import StandInError
from ddtree_core.trees import DraftTree, linear_chain, tree_walk

Load = Callable[[str], VllmSource]
VERSIONS = ("0.19.1", "0.20.2")  # the greedy and random kernels of the second take more arguments
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

# A kernel of our own: out[i] = the sum of the first i + 1 numbers, or of fewer once it is above `limit`.
TOY = """
@triton.jit(do_not_specialize=["limit"])
def running_sum_kernel(out_ptr, in_ptr, limit, WIDE: tl.constexpr):
    total = tl.zeros([], dtype=in_ptr.dtype.element_ty)
    done = False
    for i in range(tl.program_id(0) + 1):
        if not done:
            total += tl.load(in_ptr + i)
            if total > limit:
                done = True
    tl.store(out_ptr + tl.program_id(0), total.to(tl.int64) if WIDE else total)
"""
R, A, B, C, D, E, X = range(7)

# The worked examples: nodes in flattened order, parents, the target's token per node, what the linear rule
# and the tree walk emit (worked out by hand; all but the last token of each are accepted draft tokens).
EXAMPLES = {
    "siblings": ([R, A, B], [-1, 0, 0], [B, X, X], [B], [B, X]),
    "breadth-first": ([R, A, B, C, D], [-1, 0, 0, 1, 2], [A, C, X, E, X], [A, C], [A, C, E]),
    "depth-first": ([R, A, C, B, D], [-1, 0, 1, 0, 3], [A, C, E, X, X], [A, C, E], [A, C, E]),
    "depth-first, second path": ([R, A, C, B, D], [-1, 0, 1, 0, 3], [B, X, X, D, E], [B], [B, D, E]),
    # Tree-masked: X follows (R, B), yet is emitted after R, A, B. The walk stops after A.
    "tree-masked siblings": ([R, A, B], [-1, 0, 0], [A, B, X], [A, B, X], [A, B]),
    # Causal: C does follow (R, A, B), so the linear rule is right; the tree is no tree to the target.
    "causal siblings": ([R, A, B], [-1, 0, 0], [A, B, C], [A, B, C], [A, B]),
}


def tree_of(token_ids: list[int], parents: list[int]) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    log_probs = -torch.tensor(depths, dtype=torch.float32)
    return DraftTree(torch.tensor(token_ids), torch.tensor(parents), torch.tensor(depths), log_probs)


def random_trees(
    rng: np.random.Generator, count: int, vocabulary: int = 6
) -> tuple[list[DraftTree], list[list[int]]]:
    """Trees of 1 to 12 nodes and a target that often, but not always, agrees with the next node."""
    trees, targets = [], []
    for _ in range(count):
        tokens, parents = [int(rng.integers(vocabulary))], [-1]
        for node in range(1, int(rng.integers(1, 13))):
            parent = int(rng.integers(node))
            taken = {tokens[i] for i in range(node) if parents[i] == parent}
            free = [token for token in range(vocabulary) if token not in taken]
            if free:
                tokens.append(int(rng.choice(free)))
                parents.append(parent)
            else:
                break
        agrees = rng.random(len(tokens)) < 0.7
        other = rng.integers(vocabulary, size=len(tokens))
        following = np.array([*tokens[1:], 0])
        trees.append(tree_of(tokens, parents))
        targets.append(np.where(agrees, following, other).tolist())
    return trees, targets


def emitted(tree: DraftTree, target: list[int], rule: Callable) -> list[int]:
    return rule(tree, torch.tensor(target)).tokens(tree)


def random_case(rng: np.random.Generator, count: int) -> tuple[list[list[int]], list[list[int]], tuple]:
    trees, targets = random_trees(rng, count)
    drafts = sum(len(tree) - 1 for tree in trees)
    target_probs = rng.dirichlet(np.ones(6), drafts).astype(np.float32)
    draft_probs = rng.dirichlet(np.ones(6), drafts).astype(np.float32)
    return (
        [tree.token_ids.tolist() for tree in trees],
        targets,
        (target_probs, draft_probs, rng.random(drafts)),
    )


# The stand-in, on a kernel of our own.


def toy_kernel(text: str = TOY) -> Kernel:
    return Kernel(
        "toy", "running_sum_kernel", "toy.py", 10, ("out_ptr", "in_ptr", "limit", "WIDE"), text.lstrip()
    )


def toy_arguments() -> dict:
    given = {"in_ptr": np.array([3, -5, 4, 9], np.int32), "limit": 10, "WIDE": True, "unused": 0}
    return given | {"out_ptr": np.zeros(4, np.int64)}


@pytest.mark.parametrize("backend", ["numpy", pytest.param("triton-interpreter", marks=needs_triton)])
def test_a_kernel_of_our_own(backend: str) -> None:
    known = toy_arguments()
    after = execute(toy_kernel(), 4, known, backend)
    assert after["out_ptr"].tolist() == [3, -2, 2, 11]  # 3, 3 - 5, 3 - 5 + 4, 3 - 5 + 4 + 9
    assert known["out_ptr"].tolist() == [0, 0, 0, 0]  # the caller's arrays stay as they are
    assert set(after) == {"out_ptr", "in_ptr"}


def test_loaded_numbers_keep_their_dtype() -> None:
    source = "def k(out, x, y):\n    a = tl.load(x) / 1\n    tl.store(out, a >= tl.load(y))\n"
    third = np.array([1 / 3], np.float32)  # as float32, a little above the float64 third
    out = np.zeros(1, bool)
    triton_numpy.run(source, 1, {"out": out, "x": third, "y": np.array([1 / 3])})
    assert out.tolist() == [True]
    triton_numpy.run(
        source, 1, {"out": out, "x": third, "y": np.array([np.nextafter(third[0], 1, dtype=np.float32)])}
    )
    assert out.tolist() == [False]


@pytest.mark.parametrize("offset", [-1, 4])
def test_the_stand_in_does_not_read_outside_an_array(offset: int) -> None:
    with pytest.raises(StandInError, match=f"element {offset} of an array of 4"):
        triton_numpy.run(f"def k(x):\n    tl.load(x + 5 - 5 + {offset})\n", 1, {"x": np.zeros(4)})


def test_the_stand_in_refuses_what_it_lacks() -> None:
    text = TOY.replace("tl.zeros(", "tl.dot(")
    with pytest.raises(KernelError, match=r"running_sum_kernel of vLLM toy: .*no tl\.dot; install triton"):
        execute(toy_kernel(text), 1, toy_arguments(), "numpy")


@needs_triton
def test_an_error_in_the_interpreter_reaches_the_caller_and_the_next_kernel_runs() -> None:
    with pytest.raises(KernelError, match="running_sum_kernel of vLLM toy: "):
        execute(
            toy_kernel(TOY.replace("tl.zeros(", "tl.no_such_thing(")),
            1,
            toy_arguments(),
            "triton-interpreter",
        )
    after = execute(toy_kernel(), 4, toy_arguments(), "triton-interpreter")
    assert after["out_ptr"].tolist() == [3, -2, 2, 11]


@needs_triton
def test_a_dead_process_is_replaced() -> None:
    text = TOY.replace("total = tl.zeros", "__import__('os')._exit(3)\n    total = tl.zeros")
    with pytest.raises(KernelError, match=r"process ended \(.*3\)"):
        execute(toy_kernel(text), 1, toy_arguments(), "triton-interpreter")
    after = execute(toy_kernel(), 4, toy_arguments(), "triton-interpreter")
    assert after["out_ptr"].tolist() == [3, -2, 2, 11]


@needs_triton
def test_an_interrupted_call_does_not_answer_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(triton_worker, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute(toy_kernel(), 4, toy_arguments(), "triton-interpreter")
    after = execute(toy_kernel(), 2, toy_arguments(), "triton-interpreter")
    assert after["out_ptr"].tolist() == [3, -2, 0, 0]  # of two programs, not of the four before


def test_arguments_without_a_meaning_are_refused() -> None:
    known = {name: value for name, value in toy_arguments().items() if name not in ("limit", "WIDE")}
    with pytest.raises(KernelError, match="takes limit, WIDE, which has no known meaning"):
        execute(toy_kernel(), 1, known)


def test_a_backend_that_is_not_there_is_named() -> None:
    with pytest.raises(
        ValueError, match=f"'tpu' is not available here; choose one of {', '.join(available_backends())}"
    ):
        execute(toy_kernel(), 1, toy_arguments(), "tpu")


def test_a_kernel_is_taken_with_its_decorators_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "vllm/v1").mkdir(parents=True)
    body = "def rejection_sample_kernel(x):\n    pass\n"
    text = f"{body}\n@triton.jit(\n    debug=True\n)\n{body}"  # the first is a plain function
    (tmp_path / "vllm/v1/sampler.py").write_text(text)
    source = obtain("9.9.9", tmp_path)
    found = find_kernel(source, ["rejection_sample_kernel"])
    assert found == Kernel(
        "9.9.9",
        "rejection_sample_kernel",
        "vllm/v1/sampler.py",
        4,
        ("x",),
        f"@triton.jit(\n    debug=True\n)\n{body}",
    )
    with pytest.raises(KernelError, match=r"vLLM 9\.9\.9 has no kernel rejection_greedy_sample_kernel"):
        run_greedy(source, [[R]], [[A]])


@pytest.mark.parametrize(("tokens", "targets"), [([], []), ([[R], []], [[A], []]), ([[R, A]], [[A]])])
def test_requests_that_do_not_fit_are_refused(tmp_path: Path, tokens: list, targets: list) -> None:
    source = VllmSource("9.9.9", tmp_path, None, "folder", 0)
    for rule in (run_greedy, run_strict):
        with pytest.raises(ValueError, match="one target token per node"):
            rule(source, tokens, targets)


def test_probabilities_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source = VllmSource("9.9.9", tmp_path, None, "folder", 0)
    tree = [[R, A, B]], [[A, B, C]]
    ones = np.ones((2, 3))
    with pytest.raises(ValueError, match="2 draft tokens need 2 rows"):
        run_random(source, *tree, np.ones((3, 3)), None, np.zeros(3))
    with pytest.raises(ValueError, match="make them equal"):
        run_random(source, *tree, ones, np.ones((2, 4)), np.zeros(2))
    with pytest.raises(ValueError, match="outside the vocabulary of 2"):
        run_random(source, *tree, np.ones((2, 2)), None, np.zeros(2))


# vLLM's real kernels.


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rule", [run_strict, run_greedy])
@pytest.mark.parametrize("backend", ["numpy", pytest.param("triton-interpreter", marks=needs_triton)])
def test_worked_examples(vllm: Load, version: str, rule: Callable, backend: str) -> None:
    tokens, parents, targets, linear, walk = (list(column) for column in zip(*EXAMPLES.values(), strict=True))
    assert rule(vllm(version), tokens, targets, backend) == linear
    trees = [tree_of(*tree) for tree in zip(tokens, parents, strict=True)]
    assert [emitted(*case, tree_walk) for case in zip(trees, targets, strict=True)] == walk


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_linear_rule_of_this_package_is_that_of_vllm(vllm: Load, version: str) -> None:
    trees, targets = random_trees(np.random.default_rng(0), 300)
    expected = [emitted(*case, linear_chain) for case in zip(trees, targets, strict=True)]
    tokens = [tree.token_ids.tolist() for tree in trees]
    assert {len(row) for row in expected} >= {1, 2, 3, 5, 8}  # rejections early and late, and none
    assert run_strict(vllm(version), tokens, targets, "numpy") == expected
    assert run_greedy(vllm(version), tokens, targets, "numpy") == expected


@pytest.mark.vllm
@pytest.mark.parametrize("version", VERSIONS)
def test_the_random_kernel_on_a_chain(vllm: Load, version: str) -> None:
    # Two requests: drafts A, B and draft B. Accepted where target(x) / draft(x) >= uniform.
    tokens, targets = [[R, A, B], [R, B]], [[X, D, E], [C, D]]
    target = np.zeros((3, 7), np.float32)
    draft = np.zeros((3, 7), np.float32)
    target[[0, 1, 2], [A, B, B]] = [0.25, 0.5, 0.125]
    draft[[0, 1, 2], [A, B, B]] = [0.5, 0.25, 0.5]  # ratios 0.5, 2, 0.25: exact in binary

    def run(draft_probs: np.ndarray | None, *uniform: float) -> list[list[int]]:
        return run_random(vllm(version), tokens, targets, target, draft_probs, np.array(uniform), "numpy")

    assert run(draft, 0.5, 0.99, 0.25) == [[A, B, E], [B, D]]  # all accepted: equality counts
    assert run(draft, 0.51, 0.0, 0.26) == [
        [X],
        [C],
    ]  # both rejected at once: the recovered token ends the row
    assert run(draft, 0.5, 0.99, 0.26) == [[A, B, E], [C]]
    assert run(None, 0.25, 0.51, 0.125) == [[A, D], [B, D]]  # without draft probabilities: target(x) alone
    draft[0, A] = 0.0
    assert run(draft, 0.0, 0.0, 0.0) == [[X], [B, D]]  # a draft the drafter could not have drawn is rejected


@pytest.mark.vllm
@needs_triton
@pytest.mark.parametrize("version", VERSIONS)
def test_stand_in_and_interpreter_agree(vllm: Load, version: str) -> None:
    tokens, targets, (target_probs, draft_probs, uniform) = random_case(np.random.default_rng(1), 60)
    source = vllm(version)
    backends = ("numpy", "triton-interpreter")
    for rule in (run_strict, run_greedy):
        first, second = (rule(source, tokens, targets, backend) for backend in backends)
        assert first == second
    for drafted in (draft_probs, None):
        first, second = (
            run_random(source, tokens, targets, target_probs, drafted, uniform, backend)
            for backend in backends
        )
        assert first == second
        assert {len(row) for row in first} >= {1, 2}  # some accepted, some rejected at once


@pytest.mark.vllm
@pytest.mark.skipif("triton" not in available_backends(), reason="no GPU with triton")
@pytest.mark.parametrize("version", VERSIONS)
def test_stand_in_and_gpu_agree(vllm: Load, version: str) -> None:
    tokens, targets, (target_probs, draft_probs, uniform) = random_case(np.random.default_rng(2), 60)
    source = vllm(version)
    for rule in (run_strict, run_greedy):
        assert rule(source, tokens, targets, "triton") == rule(source, tokens, targets, "numpy")
    probs = (target_probs, draft_probs, uniform)
    first, second = (run_random(source, tokens, targets, *probs, backend) for backend in ("numpy", "triton"))
    assert first == second
