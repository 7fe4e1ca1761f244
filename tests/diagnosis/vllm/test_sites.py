"""Finding in vLLM's files where draft tokens are decided about."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from ddtree_core.diagnosis.vllm.sites import Site, find_sites
from ddtree_core.diagnosis.vllm.source import VllmSource, VllmSourceError, obtain
from tests.diagnosis.vllm.toy_package import SAMPLER, unpack


def test_functions_and_comparisons_are_found_by_name_and_shape(tmp_path: Path) -> None:
    sites = find_sites(obtain("9.9.9", unpack(tmp_path)))
    file, lines = "vllm/v1/sampler.py", SAMPLER.split("\n")
    verifies, kernel = ("9.9.9", "verification"), "rejection_toy_kernel"
    arguments = ("out_ptr", "draft_ptr", "target_ptr")
    text, method = "\n".join(lines[4:7]), "def tree_verify(self, ids, *, parents):\n    return ids"
    assert sites == [  # lines counted in SAMPLER, the first is 1
        Site(*verifies, "V1 runner: kernel", kernel, file, 5, arguments, False, text),
        Site(*verifies, "V1 runner: acceptance test", kernel, file, 6, (), False, "if draft != target:"),
        Site(
            *verifies,
            "V1 runner: function",
            "Sampler.tree_verify",
            file,
            11,
            ("self", "ids", "parents"),
            True,
            method,
        ),
    ]
    assert pd.DataFrame(sites)["line"].tolist() == [5, 6, 11]


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (unpack(tmp_path) / "vllm/v1/sampler.py").write_text("def rejection_sample(:\n")
    with pytest.raises(VllmSourceError, match=r"vllm/v1/sampler\.py of vLLM 9\.9\.9 is no Python"):
        find_sites(obtain("9.9.9", tmp_path))


# Read by eye in the wheels' files: where each place is, by version.
STRICT, GREEDY, RANDOM = (
    "_strict_rejection_sample_kernel",
    "rejection_greedy_sample_kernel",
    "rejection_random_sample_kernel",
)
KNOWN = {
    "0.19.1": {
        ("V2 runner: kernel", STRICT, "v1/worker/gpu/spec_decode/rejection_sampler.py", 22),
        ("V1 runner: kernel", GREEDY, "v1/sample/rejection_sampler.py", 653),
        ("V1 runner: kernel", RANDOM, "v1/sample/rejection_sampler.py", 698),
        (
            "metadata of the verify pass gets the tree mask",
            "build",
            "v1/attention/backends/tree_attn.py",
            215,
        ),
        ("attention gets the tree mask", "forward", "v1/attention/backends/tree_attn.py", 437),
        ("V1 runner: positions of the verify pass", "_prepare_inputs", "v1/worker/gpu_model_runner.py", 1817),
        ("positions while drafting a tree", "propose_tree", "v1/spec_decode/eagle.py", 983),
        ("condition for drafting a tree", "propose", "v1/spec_decode/eagle.py", 491),
        ("rejected tokens are subtracted", "update_from_output", "v1/core/sched/scheduler.py", 1379),
        ("tree is sorted breadth-first", "__post_init__", "config/speculative.py", 594),
        ("setting of the tree", "SpeculativeConfig", "config/speculative.py", 135),
    },
    "0.20.2": {
        ("V2 runner: kernel", STRICT, "v1/worker/gpu/spec_decode/rejection_sampler.py", 24),
        ("V1 runner: kernel", GREEDY, "v1/sample/rejection_sampler.py", 695),
        (
            "positions while drafting a tree",
            "propose_tree",
            "v1/spec_decode/llm_base_proposer.py",
            1037,
        ),  # moved
    },
}


@pytest.mark.vllm
@pytest.mark.parametrize("version", KNOWN)
def test_known_lines_of_vllm(vllm: Callable[[str], VllmSource], version: str) -> None:
    sites = find_sites(vllm(version))
    places = {(f.what, f.name.split(".")[-1], f.file.removeprefix("vllm/"), f.line) for f in sites}
    assert places >= KNOWN[version]
    # Every function that verifies takes the arguments of a chain, and nothing selects the tree backend.
    assert not any(found.takes_tree for found in sites if found.topic == "verification")
    assert "tree attention backend is selected" not in {found.what for found in sites}


@pytest.mark.vllm
def test_arguments_of_vllm_kernels(vllm: Callable[[str], VllmSource]) -> None:
    arguments = {
        (version, found.name): found.arguments
        for version in KNOWN
        for found in find_sites(vllm(version))
        if found.what.endswith("kernel")
    }
    strict = "sampled_ptr sampled_stride num_sampled_ptr target_sampled_ptr input_ids_ptr cu_num_logits_ptr"
    assert arguments["0.19.1", STRICT] == arguments["0.20.2", STRICT] == tuple(strict.split())
    older, newer = (arguments[version, GREEDY] for version in ("0.19.1", "0.20.2"))
    assert newer == (*older, "uniform_probs_ptr", "synthetic_conditional_rates_ptr", "SYNTHETIC_MODE")
