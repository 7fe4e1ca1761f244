"""Where a pair would lie, on published sizes: every weight once, and the verdict with what is missing."""

import pytest
import torch

from ddtree_core.diagnosis.machine.devices import Device, parse_gpus
from ddtree_core.diagnosis.machine.placement import lay_out
from ddtree_core.models import memory
from ddtree_core.models.footprint import GIB, RESERVE, footprint


@pytest.mark.usefixtures("no_network")
def test_it_fits_on_two_cards_of_48_gib() -> None:
    placement = lay_out(footprint("qwen3.6-27b"), parse_gpus("2x48GiB"), context=4096, budget=64)
    first, second = placement.shares
    assert placement.fits
    assert (first.layers, second.layers) == (tuple(range(32)), tuple(range(32, 64)))
    assert first.memory.weights + second.memory.weights == 2 * 26_895_998_464
    assert first.memory.weights / GIB == pytest.approx(25.05, abs=0.01)
    # The output head ends up on the second card, and the drafter beside it: 1,730,213,120 parameters.
    assert (first.memory.drafter, second.memory.drafter) == (0, 2 * 1_730_213_120)
    row, state = 16_384 // 4, 48 * 128 * 128 * 4 + 4 * 10240 * 2
    assert first.memory.caches == 8 * 2 * 4096 * row + 24 * state
    assert second.memory.caches == first.memory.caches + 2 * 4096 * placement.footprint.draft_per_token
    assert second.left > 18 * GIB
    assert placement.verdict == (
        "qwen3.6-27b needs 56.3 GiB (weights 50.1, drafter 3.2, caches 0.8, tree 0.2, reserve 2.0) in "
        "bfloat16 and fits: cuda:1, the tightest, keeps 18.1 GiB free."
    )


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3.5-4b", "qwen3.6-35b-a3b", "gpt-oss-20b", "qwen3-4b"])
@pytest.mark.parametrize("gpus", ["2x48GiB", "1x80GB+2x24GiB", "4x24GiB", "2x8GiB"])
def test_every_weight_has_one_place(name: str, gpus: str) -> None:
    placement = lay_out(footprint(name), parse_gpus(gpus))
    total = sum(p.numel() * p.element_size() for p in placement.footprint.model.parameters())
    assert sum(share.memory.weights for share in placement.shares) == total
    assert [i for share in placement.shares for i in share.layers] == list(
        range(len(placement.footprint.layers))
    )
    assert sum(share.memory.drafter > 0 for share in placement.shares) == 1
    for share in placement.shares:
        named = share.device.startswith("cuda")
        assert share.memory.reserve == (RESERVE if named else 0)
        assert share.left == share.free - share.memory.total


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3.6-35b-a3b", "gpt-oss-20b", "smollm2-135m"])
def test_loading_a_pair_asks_for_as_much_as_its_placement(
    name: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the check before loading, part by part, is the sum over the devices of the plan."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    placement = lay_out(footprint(name), parse_gpus(f"{gpus}x200GiB"))
    assert memory.required(name, torch.bfloat16, "auto") == placement.memory


def test_what_does_not_fit_is_told_with_what_is_missing() -> None:
    needs = footprint("qwen3.6-27b")
    small = lay_out(needs, parse_gpus("2x24GiB"))
    assert [share.device for share in small.shares] == ["cuda:0", "cuda:1", "offloaded"]
    assert not small.fits
    assert "does not fit: 5.2 GiB of its weights would leave the devices" in small.verdict
    alone = lay_out(needs, parse_gpus("1x48GiB"))  # one GPU: nothing is split
    assert [len(share.layers) for share in alone.shares] == [64]
    assert alone.verdict == (
        "qwen3.6-27b needs 55.3 GiB (weights 50.1, drafter 3.2, caches 0.8, tree 0.2, reserve 1.0) in "
        "bfloat16 and does not fit: cuda:0 is short of 7.3 GiB."
    )
    assert lay_out(needs, parse_gpus("1x80GB")).fits


def test_without_gpus_everything_lies_in_ram() -> None:
    ram = Device("cpu", 16 * GIB, 8 * GIB)
    placement = lay_out(footprint("smollm2-135m", torch.float32), [ram])
    (share,) = placement.shares
    assert share.memory.weights == 4 * 134_515_008
    assert placement.fits
    assert lay_out(footprint("qwen3-4b", torch.float32), [ram]).fits is False


@pytest.mark.parametrize(("context", "budget", "gpus"), [(0, 64, 1), (4096, 0, 1), (4096, 64, 0)])
def test_plans_for_nothing_are_refused(context: int, budget: int, gpus: int) -> None:
    with pytest.raises(ValueError, match="expected at least one of each"):
        lay_out(footprint("tiny-llama"), parse_gpus("1x1GiB")[:gpus], context, budget)


def test_a_plan_agrees_with_the_librarys_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_pretrained(device_map="auto")` asks this function of the library for its device map."""
    from transformers.integrations import accelerate

    needs = footprint("qwen3.6-27b")
    free = {i: 24 * GIB for i in range(4)}
    expected = accelerate._get_device_map(needs.model, "auto", free, None)
    placement = lay_out(needs, parse_gpus("4x24GiB"))
    where = {i: int(share.device[-1]) for share in placement.shares for i in share.layers}
    assert where == {i: expected[f"model.layers.{i}"] for i in range(64)}
    assert placement.shares[expected["lm_head"]].memory.drafter > 0
