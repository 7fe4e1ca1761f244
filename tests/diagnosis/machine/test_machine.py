"""The machine report: devices are looked up and left alone, and a plan tells what really takes memory.

Sizes of caches and stashes are compared with what tiny models really keep; the plan of the investigation's
pair with published sizes.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import Lfm2Config

from ddtree_core.diagnosis import machine
from ddtree_core.diagnosis.machine import devices
from ddtree_core.diagnosis.machine.__main__ import main
from ddtree_core.diagnosis.machine.devices import GIB, Device, parse_gpus, present_devices
from ddtree_core.diagnosis.machine.placement import RESERVE, lay_out
from ddtree_core.diagnosis.machine.tables import PARTS
from ddtree_core.models import PAIRS, PairError, Target
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.footprint import footprint, shape_of
from ddtree_core.models.tiny import tiny_config, tiny_target
from ddtree_core.trees import DraftTree
from tests.models import draft_files, target_files

# --- devices ---


def test_named_gpus_are_numbered_and_sized() -> None:
    named = parse_gpus("1x80GB+2 x 24GiB + 512mib")
    assert [(d.name, d.free) for d in named] == [
        ("cuda:0", 80 * 10**9),
        ("cuda:1", 24 * 2**30),
        ("cuda:2", 24 * 2**30),
        ("cuda:3", 512 * 2**20),
    ]


@pytest.mark.parametrize(
    "text", ["", "2x", "48", "x48GiB", "0x48GiB", "2x48TB", "2x0GiB", "2x48GiB+", "-1x4GB"]
)
def test_what_does_not_name_gpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected number x memory"):
        parse_gpus(text)


def test_the_ram_is_the_machines_and_its_holders_are_the_largest() -> None:
    ram = present_devices(processes=3)[-1]
    assert (ram.name, ram.total) == ("cpu", psutil.virtual_memory().total)
    assert 0 < ram.free < ram.total
    sizes = [holder.bytes or 0 for holder in ram.holders]
    assert 1 <= len(sizes) <= 3
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] >= psutil.Process().memory_info().rss * 0.9  # at least as large as this process


UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-8888-7777-6666-555555555555")


@pytest.fixture
def child():
    """A process of somebody else's, so to say."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts an `nvidia-smi` in the path that answers for two GPUs and writes down what it was asked."""

    def install(apps: str = "", status: int = 0) -> Path:
        gpus = f"{UUIDS[0]}, 49140, 20140, NVIDIA RTX A6000\n{UUIDS[1]}, 49140, 49140, NVIDIA RTX A6000\n"
        answers, log, tool = tmp_path / "answers.json", tmp_path / "asked", tmp_path / "nvidia-smi"
        answers.write_text(json.dumps({"--query-gpu": gpus, "--query-compute-apps": apps}))
        tool.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            f"print(json.load(open({str(answers)!r}))[sys.argv[1].split('=')[0]], end='')\n"
            f"sys.exit({status})\n"
        )
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return log

    return install


def test_gpus_and_their_holders_are_what_the_driver_tells(
    driver: Callable[..., Path], child: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    log = driver(
        f"{UUIDS[0]}, {child.pid}, 5000, /usr/bin/python3\n"
        f"{UUIDS[0]}, 999999999, 24000, a name, with a comma\n"
        f"{UUIDS[1]}, 999999998, [N/A], hidden\n"
    )
    first, second, _ram = present_devices()
    assert (first.name, first.model, first.is_gpu) == ("cuda:0", "NVIDIA RTX A6000", True)
    assert (first.total, first.free) == (49140 * 2**20, 20140 * 2**20)
    assert [(h.pid, h.name, h.bytes) for h in first.holders] == [
        (999999999, "a name, with a comma", 24000 * 2**20),
        (child.pid, "/usr/bin/python3", 5000 * 2**20),
    ]
    assert [h.user for h in first.holders] == ["?", psutil.Process().username()]
    assert [(h.name, h.bytes) for h in second.holders] == [("hidden", None)]
    # Queries and nothing else; whoever holds the memory goes on.
    assert all(asked.startswith("--query-") for asked in log.read_text().splitlines())
    assert child.poll() is None


def test_the_driver_is_asked_about_the_gpus_that_torch_may_use(
    driver: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver()
    seen = [UUIDS[1].removeprefix("GPU-"), "00000000-0000-0000-0000-000000000000"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=seen[i]))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: (3 * GIB, 4 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "of a slice")
    first, second, _ram = present_devices()
    assert (first.name, first.free) == ("cuda:0", 49140 * 2**20)  # the driver's second one
    assert (second.name, second.free, second.total, second.model) == (
        "cuda:1",
        3 * GIB,
        4 * GIB,
        "of a slice",
    )


@pytest.mark.parametrize("installed", [True, False])
def test_without_an_answering_driver_there_are_no_gpus(
    installed: bool, driver: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if installed:
        driver(status=9)
    else:
        monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    assert [d.name for d in present_devices()] == ["cpu"]


# --- what a pair needs ---

TINY = [name for name, row in PAIRS.items() if row.tiny]


def star(n: int) -> DraftTree:
    """A root with n − 1 children."""
    depths = torch.tensor([0] + [1] * (n - 1))
    return DraftTree(torch.arange(1, n + 1), depths - 1, depths, torch.zeros(n))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", TINY)
def test_layers_keep_as_many_bytes_as_foretold(name: str, dtype: torch.dtype) -> None:
    """Against the caches of a real model, after a prompt of 40 tokens and a tree of 9 nodes."""
    model: Any = tiny_target(tiny_config(PAIRS[name].tiny or ""))
    model = model.to(dtype)
    needs, target = footprint(name, dtype), Target(model)
    assert needs.target_parameters == sum(p.numel() for p in model.parameters())
    target.prefill(torch.arange(1, 41))
    kept: Any
    for kept, told in zip(target._cache.layers, needs.layers, strict=True):
        if told.kind == "linear_attention":
            held = kept.recurrent_states[0].nbytes + kept.conv_states[0].nbytes
            assert told.state == told.cache(10**6) == held
        else:
            rows = 40 if told.window is None else told.window - 1
            assert rows * told.per_token == kept.keys.nbytes + kept.values.nbytes
            assert told.cache(40) == rows * told.per_token * (2 if told.window is None else 1)
    target.verify(star(9))
    for kept, told in zip(target._cache.layers, needs.layers, strict=True):
        assert 9 * told.per_node == (
            kept.stash.nbytes if told.kind == "linear_attention" else 9 * kept.keys[:, :, 0].nbytes * 2
        )


def test_a_growing_cache_holds_at_most_twice_the_rows_in_use() -> None:
    layer: Any = Target(tiny_target(tiny_config("llama")))._cache.layers[0]
    for rows in range(1, 300):
        layer.update(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
        held = layer._buffers[0].shape[2]
        assert held <= max(64, 2 * rows)  # the few rows of the beginning do not count


RELEASES = [draft_files.BY_NAME[name] for name in ("qwen3-8b", "qwen3.5-9b-retrained", "qwen3.6-27b")]
KEPT = torch.tensor([0, 1, 5, 6, 7, 20, 44, 45, 90, 95])


@pytest.mark.parametrize("layout", ["z-lab", "speculators"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_a_drafters_shape_has_the_parameters_of_the_loaded_drafter(
    release: draft_files.Release, layout: str, tmp_path: Path
) -> None:
    config, tensors = draft_files.z_lab_config(release), draft_files.body_tensors(release)
    if layout == "speculators":
        config = draft_files.speculators_config(release, len(KEPT))
        tensors |= draft_files.vocabulary_tensors(release.hidden, KEPT)
    target = draft_files.stand_in(release.target_layers, release.hidden)
    model = load_drafter(draft_files.write_checkpoint(tmp_path, config, tensors), target)
    shape = shape_of(model.config, layout == "speculators")
    assert shape.parameters == sum(p.numel() for p in model.parameters())

    drafter = model.open(target, [])
    drafter.draft(torch.randn(7, len(release.ids) * release.hidden), torch.arange(7))
    kept: list[Any] = drafter._cache
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in kept)
    assert 7 * 4 * shape.context_values == held


def test_a_pair_of_folders_is_sized_by_its_configs_alone(tmp_path: Path) -> None:
    """The weights are not there; the language model is counted, the vision tower told apart."""
    sizes = {"vocab_size": target_files.VOCAB, "hidden_size": target_files.HIDDEN, "num_target_layers": 8}
    drafter: dict[str, Any] = draft_files.z_lab_config(draft_files.BY_NAME["qwen3.6-27b"]) | sizes
    drafter["dflash_config"]["target_layer_ids"] = [0, 3, 7]
    for folder, config in (("target", target_files.wrapper_config()), ("drafter", drafter)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    needs = footprint((str(tmp_path / "target"), str(tmp_path / "drafter")))
    assert needs.target_parameters == sum(t.numel() for t in target_files.text_tensors().values())
    vision = [t.numel() for name, t in target_files.wrapper_tensors().items() if "visual" in name]
    assert needs.vision_parameters == sum(vision)
    assert needs.draft is not None
    assert (needs.draft.layers, needs.draft.captured, needs.draft.table_rows) == (5, 3, 0)


def test_layers_that_are_not_known_are_named(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    types = ["conv", "full_attention"]
    Lfm2Config(hidden_size=32, num_hidden_layers=2, layer_types=types).save_pretrained(tmp_path / "target")
    with pytest.raises(ValueError, match="lfm2 has conv layers, whose caches are not known"):
        footprint((str(tmp_path / "target"), str(tmp_path / "drafter")))


def test_unknown_pairs_are_refused() -> None:
    with pytest.raises(PairError, match=r"unknown pair 'qwen3\.7'"):
        footprint("qwen3.7")


# --- the investigation's pair ---


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_what_qwen36_27b_needs() -> None:
    """Qwen3.6-27B: 64 layers, every fourth of full attention, hidden size 5120 (the registry's shape).

    26,895,998,464 parameters at two bytes are 50.1 GiB; with vision tower and multi-token prediction, which
    are not loaded, the checkpoint is 51.7 GiB, the investigation's "about 52 GB".
    """
    needs = footprint("qwen3.6-27b")
    assert needs.target_parameters == 26_895_998_464
    assert needs.vision_parameters == 460_730_096
    assert 2 * needs.target_parameters / GIB == pytest.approx(50.1, abs=0.05)
    kinds = [layer.kind for layer in needs.layers]
    assert kinds == (["linear_attention"] * 3 + ["full_attention"]) * 16
    assert needs.per_token == 16 * 2 * 4 * 256 * 2  # layers, keys and values, heads, dimension, bytes
    # 48 layers with 48 value heads of 128 × 128 numbers in float32; 4 rows of 2·2048 + 6144 channels.
    assert needs.state_bytes == 48 * (48 * 128 * 128 * 4 + 4 * 10240 * 2)
    assert needs.draft_per_token == 5 * 2 * 8 * 128 * 2
    stash = 4 * (16 * 128 + 48 * 128 + 48) + 2 * 10240  # k per key head, u, g; raw row
    assert needs.tree_bytes(64) == 64 * (48 * stash + needs.per_token + 4 * 248320)


@pytest.mark.usefixtures("no_network")
def test_it_fits_on_two_cards_of_48_gib() -> None:
    laid = lay_out(footprint("qwen3.6-27b"), parse_gpus("2x48GiB"), context=4096, budget=64)
    first, second = laid.shares
    assert laid.fits
    assert (first.layers, second.layers) == (tuple(range(32)), tuple(range(32, 64)))
    assert first.weights + second.weights == 2 * 26_895_998_464
    assert first.weights / GIB == pytest.approx(25.05, abs=0.01)
    # The output head ends up on the second card, and the drafter beside it: 1,730,213,120 parameters.
    assert (first.drafter, second.drafter) == (0, 2 * 1_730_213_120)
    row, state = 16_384 // 4, 48 * 128 * 128 * 4 + 4 * 10240 * 2
    assert first.caches == 8 * 2 * 4096 * row + 24 * state
    assert second.caches == first.caches + 2 * 4096 * laid.footprint.draft_per_token
    assert second.left > 18 * GIB
    assert laid.verdict == "qwen3.6-27b in bfloat16 fits: cuda:1, the tightest, keeps 18.1 GiB free."


@pytest.mark.parametrize("name", ["qwen3.6-27b", "qwen3.5-4b", "qwen3.6-35b-a3b", "gpt-oss-20b", "qwen3-4b"])
@pytest.mark.parametrize("gpus", ["2x48GiB", "1x80GB+2x24GiB", "4x24GiB", "2x8GiB"])
def test_every_weight_has_one_place(name: str, gpus: str) -> None:
    laid = lay_out(footprint(name), parse_gpus(gpus))
    total = sum(p.numel() * p.element_size() for p in laid.footprint.model.parameters())
    assert sum(share.weights for share in laid.shares) == total
    assert [i for share in laid.shares for i in share.layers] == list(range(len(laid.footprint.layers)))
    assert sum(share.drafter > 0 for share in laid.shares) == 1
    for share in laid.shares:
        named = share.device.startswith("cuda")
        assert share.reserve == (RESERVE if named else 0)
        assert share.left == share.free - share.needed


def test_what_does_not_fit_is_told_with_what_is_missing() -> None:
    needs = footprint("qwen3.6-27b")
    small = lay_out(needs, parse_gpus("2x24GiB"))
    assert [share.device for share in small.shares] == ["cuda:0", "cuda:1", "offloaded"]
    assert not small.fits
    assert "does not fit: 5.2 GiB of its weights would leave the devices" in small.verdict
    alone = lay_out(needs, parse_gpus("1x48GiB"))  # one GPU: nothing is split
    assert [len(share.layers) for share in alone.shares] == [64]
    assert alone.verdict == "qwen3.6-27b in bfloat16 does not fit: cuda:0 is short of 7.3 GiB."
    assert lay_out(needs, parse_gpus("1x80GB")).fits


def test_without_gpus_everything_lies_in_ram() -> None:
    ram = Device("cpu", 16 * GIB, 8 * GIB)
    laid = lay_out(footprint("smollm2-135m", torch.float32), [ram])
    (share,) = laid.shares
    assert share.weights == 4 * 134_515_008
    assert laid.fits
    assert lay_out(footprint("qwen3-4b", torch.float32), [ram]).fits is False


@pytest.mark.parametrize(("context", "budget", "gpus"), [(0, 64, 1), (4096, 0, 1), (4096, 64, 0)])
def test_plans_for_nothing_are_refused(context: int, budget: int, gpus: int) -> None:
    with pytest.raises(ValueError, match="expected at least one of each"):
        lay_out(footprint("tiny-llama"), parse_gpus("1x1GiB")[:gpus], context, budget)


# --- tables and the command ---


def test_tables_tell_the_plan() -> None:
    needs = footprint("qwen3.6-27b")
    told: Any = machine.footprint_table(needs)["memory"]
    assert told["target"] == "26.896e9 parameters: 50.1 GiB in bfloat16, 100.2 GiB in float32"
    assert told["keys and values per 1,000 tokens"] == "62.5 MiB (16 layers)"
    assert told["recurrent and convolution state"] == "147.8 MiB (48 layers)"
    assert told["vision tower, never loaded"].startswith("0.461e9 parameters: 0.9 GiB")
    table: Any = machine.placement_table(lay_out(needs, parse_gpus("2x48GiB")))
    assert list(table.index) == ["cuda:0", "cuda:1"]
    assert list(table["layers"]) == ["0–31", "32–63"]
    assert table[list(PARTS)].sum(axis=1).tolist() == pytest.approx(table["needed"].tolist())
    assert (table["needed"] + table["left"]).tolist() == pytest.approx([48.0, 48.0])


def test_holders_are_listed_by_device() -> None:
    held = Device(
        "cuda:0",
        48 * GIB,
        20 * GIB,
        "A6000",
        (devices.Holder(7, "python", "ann", 27 * GIB), devices.Holder(8, "Xorg", "root", None)),
    )
    table: Any = machine.holder_table([held])
    assert table.reset_index().to_numpy().tolist() == [
        ["cuda:0", 7, "python", "ann", "27.00"],
        ["cuda:0", 8, "Xorg", "root", "?"],
    ]
    assert machine.device_table([held]).loc["cuda:0"].tolist() == ["A6000", "48.0", "20.0", "python (7)"]
    assert len(machine.holder_table([])) == 0


@pytest.mark.usefixtures("no_network")
def test_the_command_prints_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pair", "qwen3.6-27b", "--gpus", "2x48GiB"]) == 0
    out = capsys.readouterr().out
    assert "Qwen/Qwen3.6-27B, drafted for by z-lab/Qwen3.6-27B-DFlash" in out
    assert out.strip().endswith("fits: cuda:1, the tightest, keeps 18.1 GiB free.")
    assert main(["--pair", "qwen3.6-27b", "--gpus", "1x24GiB"]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert main([]) == 0  # the default pair on this machine
    out = capsys.readouterr().out
    assert "held most by" in out
    assert "smollm2-135m in" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "2x"], "expected number x memory"),
        (["--pair", "qwen3.7"], "unknown pair"),
        (["--gpus", "1x1GiB", "--context", "0"], "expected at least one of each"),
    ],
)
def test_requests_that_cannot_be_answered_end_in_a_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)


def test_a_plan_agrees_with_the_librarys_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from_pretrained(device_map="auto")` asks this function of the library for its device map."""
    from transformers.integrations import accelerate

    needs = footprint("qwen3.6-27b")
    free = {i: 24 * GIB for i in range(4)}
    expected = accelerate._get_device_map(needs.model, "auto", free, None)
    laid = lay_out(needs, parse_gpus("4x24GiB"))
    where = {i: int(share.device[-1]) for share in laid.shares for i in share.layers}
    assert where == {i: expected[f"model.layers.{i}"] for i in range(64)}
    assert laid.shares[expected["lm_head"]].drafter > 0
