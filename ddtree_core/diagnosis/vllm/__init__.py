"""vLLM's own code: obtained, read, run; and the acceptance rules side by side."""

from ddtree_core.diagnosis.vllm import rules
from ddtree_core.diagnosis.vllm.samplers import run_greedy, run_random, run_strict
from ddtree_core.diagnosis.vllm.sites import Site, find_sites
from ddtree_core.diagnosis.vllm.source import VllmSource, VllmSourceError, obtain

__all__ = [
    "Site",
    "VllmSource",
    "VllmSourceError",
    "find_sites",
    "obtain",
    "rules",
    "run_greedy",
    "run_random",
    "run_strict",
]
