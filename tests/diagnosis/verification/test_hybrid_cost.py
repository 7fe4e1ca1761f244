"""Memory and time of a tree in a linear layer: sizes by hand, and medians of a clock that is known."""

from typing import Any

import pytest
import torch

from ddtree_core.diagnosis.verification import hybrid_cost
from ddtree_core.models.footprint import footprint


class TestMemory:
    def test_sizes_of_qwen36_27b_by_hand(self):
        """Of a node: keys 16·128, updates 48·128 and decays 48 in float32, 10,240 inputs of the convolution
        in bfloat16. A state per node: 48 heads of 128 × 128 in float32, and 4 columns of the convolution.
        """
        ours, states = hybrid_cost.tree_memory(footprint("qwen3.6-27b"), [64])
        assert ours["bytes"] == 64 * (4 * (16 * 128 + 48 * 128 + 48) + 2 * 10_240)
        assert states["bytes"] == 64 * (4 * 48 * 128 * 128 + 2 * 4 * 10_240)
        assert ours["layers"] == states["layers"] == 48
        assert (ours["way"], states["way"]) == hybrid_cost.WAYS

    @pytest.mark.parametrize("kind", ["qwen3_5_moe", "qwen3_next"])
    def test_what_the_footprint_counts_is_what_a_layer_holds(self, kind):
        needs = footprint(f"tiny-{kind}", torch.float32)
        assert hybrid_cost.stash_bytes(needs, 9) == 9 * needs.layers[0].per_node

    def test_a_target_without_linear_layers(self):
        with pytest.raises(ValueError, match="has no linear layers, so nothing is held; choose a hybrid"):
            hybrid_cost.stash_bytes(footprint("tiny-llama"), 8)


class TestTime:
    def test_medians_of_turns(self, monkeypatch):
        """A chain takes 2 ms and a tree 1 ms, 100 ms in the first repeat, which warms up."""
        now, order = [0.0], []

        def readings(_layer: Any, _config: Any, nodes: int) -> dict[str, Any]:
            def call(name: str, seconds: float) -> None:
                now[0] += seconds if len(order) >= 4 else 0.1
                order.append((nodes, name))

            return {name: lambda n=name, s=s: call(n, s) for name, s in (("chain", 0.002), ("tree", 0.001))}

        monkeypatch.setattr(hybrid_cost, "_readings", readings)
        monkeypatch.setattr(hybrid_cost.time, "process_time", lambda: now[0])
        rows = hybrid_cost.layer_costs([4, 8], heads=2, head_dim=8, hidden=16, repeats=2)
        assert [(row["nodes"], row["reading"]) for row in rows] == order[4:8]
        assert [row["milliseconds"] for row in rows] == pytest.approx([2, 1, 2, 1])
        assert order[8:] == order[4:8][::-1]

    @torch.inference_mode()
    def test_both_readings_of_a_layer(self):
        """Of a layer with random weights, which must not touch the caller's random numbers."""
        before = torch.random.get_rng_state()
        rows = hybrid_cost.layer_costs([4], heads=2, head_dim=8, hidden=16, repeats=1)
        assert [row["reading"] for row in rows] == list(hybrid_cost.READINGS)
        assert all(row["milliseconds"] > 0 for row in rows)
        assert torch.equal(torch.random.get_rng_state(), before)
