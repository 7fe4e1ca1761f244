"""vLLM's acceptance rules on draft trees: its real kernels, called as its samplers call them.

A request is one flattened tree: `token_ids[0]` is the root (the last committed token), the others are draft
tokens in the order in which they are verified, and `target_tokens[i]` is what the target chooses after node
i. All requests of a call go through the kernel in one launch, as one batch of vLLM does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ddtree_core.diagnosis.vllm.kernels import execute, find_kernel
from ddtree_core.diagnosis.vllm.source import VllmSource

STRICT = ("_strict_rejection_sample_kernel", "_rejection_sample_kernel")  # the second: 0.12 to 0.17
GREEDY = ("rejection_greedy_sample_kernel",)
RANDOM = ("rejection_random_sample_kernel",)
PLACEHOLDER = -1  # what vLLM fills its output with where no token was emitted


def run_greedy(
    source: VllmSource,
    token_ids: Sequence[Sequence[int]],
    target_tokens: Sequence[Sequence[int]],
    backend: str = "auto",
) -> list[list[int]]:
    """Tokens that the V1 runner's greedy kernel emits for each request: accepted drafts, then the target's.

    Raises KernelError; ValueError for requests that do not fit.
    """
    known = _v1_batch(token_ids, target_tokens)
    known |= {"target_argmax_ptr": known.pop("chosen"), "is_greedy_ptr": None, "uniform_probs_ptr": None}
    return _run_v1(source, GREEDY, known, backend)


def run_random(
    source: VllmSource,
    token_ids: Sequence[Sequence[int]],
    target_tokens: Sequence[Sequence[int]],
    target_probs: Float[ndarray, "drafts vocab"],
    draft_probs: Float[ndarray, "drafts vocab"] | None,
    uniform: Float[ndarray, " drafts"],
    backend: str = "auto",
) -> list[list[int]]:
    """Tokens that the V1 runner's kernel for sampled requests emits for each request.

    Row i of the probabilities and entry i of `uniform` (in [0, 1)) belong to the i-th draft token, counted
    through all requests without their roots. Draft token x is accepted where target(x) / draft(x) >= uniform;
    at the first rejection the entry of `target_tokens` is emitted (vLLM draws it from max(0, target - draft)
    before the kernel runs). Without `draft_probs` every draft(x) is 1.

    Raises KernelError; ValueError for requests or shapes that do not fit.
    """
    known = _v1_batch(token_ids, target_tokens)
    _check_draws(known["draft_token_ids_ptr"], target_probs, draft_probs, uniform)
    known |= {
        # A native kernel must find one type for accepted and recovered tokens: that of the draft tokens.
        "recovered_token_ids_ptr": known.pop("chosen").astype(np.int32),
        "draft_probs_ptr": None if draft_probs is None else np.ascontiguousarray(draft_probs, np.float32),
        "target_probs_ptr": np.ascontiguousarray(target_probs, np.float32),
        "uniform_probs_ptr": np.ascontiguousarray(uniform, np.float64),
        "is_greedy_ptr": np.zeros(len(token_ids), np.bool_),
        "vocab_size": target_probs.shape[1],
        "NO_DRAFT_PROBS": draft_probs is None,
    }
    return _run_v1(source, RANDOM, known, backend)


def run_strict(
    source: VllmSource,
    token_ids: Sequence[Sequence[int]],
    target_tokens: Sequence[Sequence[int]],
    backend: str = "auto",
) -> list[list[int]]:
    """Tokens that the V2 runner's strict kernel emits for each request: accepted drafts, then the target's.

    Raises KernelError, for example for a version after 0.20, which has no such kernel; ValueError for
    requests that do not fit.
    """
    lengths = _lengths(token_ids, target_tokens)
    known = {
        "sampled_ptr": np.full((len(lengths), max(lengths)), PLACEHOLDER, np.int64),
        "sampled_stride": max(lengths),
        "num_sampled_ptr": np.zeros(len(lengths), np.int32),
        "target_sampled_ptr": _flat(target_tokens, np.int64),
        "input_ids_ptr": _flat(token_ids, np.int32),
        "cu_num_logits_ptr": np.cumsum([0, *lengths], dtype=np.int32),
    }
    after = execute(find_kernel(source, STRICT), len(lengths), known, backend)
    counts = after["num_sampled_ptr"].tolist()
    return [row[:count] for row, count in zip(after["sampled_ptr"].tolist(), counts, strict=True)]


def _v1_batch(token_ids: Sequence[Sequence[int]], target_tokens: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Arguments that both V1 kernels take, with the dtypes of vLLM's call.

    `chosen` is the target's token in the place of each draft token.
    """
    lengths = _lengths(token_ids, target_tokens)
    longest = max(lengths) - 1
    return {
        "output_token_ids_ptr": np.full((len(lengths), longest + 1), PLACEHOLDER, np.int32),
        "cu_num_draft_tokens_ptr": np.cumsum([length - 1 for length in lengths], dtype=np.int32),
        "draft_token_ids_ptr": _flat([tokens[1:] for tokens in token_ids], np.int32),
        "chosen": _flat([tokens[:-1] for tokens in target_tokens], np.int64),
        "bonus_token_ids_ptr": np.array([tokens[-1] for tokens in target_tokens], np.int64),
        "max_spec_len": longest,
        # Newer versions can pretend to accept drafts at given rates, for benchmarks: off.
        "synthetic_conditional_rates_ptr": None,
        "SYNTHETIC_MODE": False,
    }


def _check_draws(
    draft_tokens: ndarray, target_probs: ndarray, draft_probs: ndarray | None, uniform: ndarray
) -> None:
    drafts = len(draft_tokens)
    if uniform.shape != (drafts,) or target_probs.ndim != 2 or len(target_probs) != drafts:
        raise ValueError(
            f"{drafts} draft tokens need {drafts} rows of probabilities and uniform numbers, got "
            f"{target_probs.shape} and {uniform.shape}"
        )
    if draft_probs is not None and draft_probs.shape != target_probs.shape:
        raise ValueError(
            f"draft_probs is {draft_probs.shape}, target_probs {target_probs.shape}: make them equal"
        )
    vocabulary = target_probs.shape[1]
    if drafts and draft_tokens.max() >= vocabulary:
        raise ValueError(f"a draft token is outside the vocabulary of {vocabulary}; give wider probabilities")


def _run_v1(source: VllmSource, names: Sequence[str], known: dict[str, Any], backend: str) -> list[list[int]]:
    output = known["output_token_ids_ptr"]
    after = execute(find_kernel(source, names), len(output), known, backend)["output_token_ids_ptr"]
    # The kernels return no counts: vLLM, too, reads a row up to its placeholder.
    return [[token for token in row if token != PLACEHOLDER] for row in after.tolist()]


def _lengths(token_ids: Sequence[Sequence[int]], target_tokens: Sequence[Sequence[int]]) -> list[int]:
    lengths = [len(tokens) for tokens in token_ids]
    if not lengths or 0 in lengths or lengths != [len(tokens) for tokens in target_tokens]:
        raise ValueError(
            f"each request needs its root and one target token per node: {lengths} nodes, "
            f"{[len(tokens) for tokens in target_tokens]} target tokens"
        )
    return lengths


def _flat(rows: Sequence[Sequence[int]], dtype: type) -> ndarray:
    return np.array([int(token) for row in rows for token in row], dtype)
