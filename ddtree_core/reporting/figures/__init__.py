"""Figures: a table in, a matplotlib Figure out; nothing is loaded and nothing is shown."""

from ddtree_core.reporting.figures.acceptance import (
    acceptance_by_depth,
    acceptance_histograms,
    mean_acceptance,
)
from ddtree_core.reporting.figures.autopsy import (
    acceptance_by_slot,
    confusion_matrix,
    examined,
    faults_by_share,
)
from ddtree_core.reporting.figures.cost import memory_bars, speedup, stage_seconds, token_timeline
from ddtree_core.reporting.figures.hybrid import layer_cost, node_errors, tree_memory
from ddtree_core.reporting.figures.machine import placement
from ddtree_core.reporting.figures.rules import rule_histograms
from ddtree_core.reporting.figures.training import training_progress
from ddtree_core.reporting.figures.verify import verify_cost

__all__ = [
    "acceptance_by_depth",
    "acceptance_by_slot",
    "acceptance_histograms",
    "confusion_matrix",
    "examined",
    "faults_by_share",
    "layer_cost",
    "mean_acceptance",
    "memory_bars",
    "node_errors",
    "placement",
    "rule_histograms",
    "speedup",
    "stage_seconds",
    "token_timeline",
    "training_progress",
    "tree_memory",
    "verify_cost",
]
