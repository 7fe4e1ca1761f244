"""The gated delta rule over a tree gives every node what the plain recurrence gives its root path.

The rule itself is held against its defining recurrence, written out below in float64; the layers against the
library's own forward, which knows no trees.
"""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import dispatch_model
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
)
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

from ddtree_core.diagnosis.verification.hybrid_lab import LibraryTarget
from ddtree_core.models import Target, gated_delta_layers
from ddtree_core.models.cache import RecurrentLayer, new_cache
from ddtree_core.models.gated_delta import conv_table, path_state, tree_conv, tree_delta_rule
from ddtree_core.models.gated_delta_layers import recurrent_layers, tree_layers
from ddtree_core.models.target import check_supported, decoder_layers
from ddtree_core.trees import DraftTree
from tests.models.tree_sessions import (
    HYBRID,
    HYBRIDS,
    VOCAB,
    Session,
    build,
    grow,
    read_alone,
    read_step_by_step,
    trees,
)

KEY_HEADS, HEADS, DK, DV = 2, 4, 5, 3


def shape_of(name: str, nodes: int) -> list[int]:
    """Parents of a tree of this shape."""
    generator = torch.Generator().manual_seed(nodes)
    later = range(1, nodes)
    return {
        "chain": [-1, *(i - 1 for i in later)],
        "star": [-1] + [0] * (nodes - 1),
        "wide": [-1, *((i - 1) // 4 for i in later)],
        "random": [-1, *(int(torch.randint(i, (1,), generator=generator)) for i in later)],
    }[name]


SHAPES = [(name, nodes) for name in ("chain", "star", "wide", "random") for nodes in (2, 17, 64)]


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


Numbers = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def draw(nodes: int, decay: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Numbers]:
    """State; queries, keys, values, log decays around −`decay`, and rates, of random numbers."""
    generator = torch.Generator().manual_seed(nodes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, *shape, generator=generator, dtype=torch.float64).to(dtype)

    queries, keys = (nn.functional.normalize(normal(KEY_HEADS, nodes, DK), dim=-1) for _ in range(2))
    log_decays, rates = -2 * decay * normal(HEADS, nodes).sigmoid(), normal(HEADS, nodes).sigmoid()
    return normal(HEADS, DK, DV), (queries, keys, normal(HEADS, nodes, DV), log_decays, rates)


def recurrence(state: Tensor, numbers: Numbers, path: list[int]) -> tuple[Tensor, Tensor]:
    """Output (heads, dv) at the end of a path and the state (heads, dk, dv) behind it, one token after
    another: decay, write what the key does not read yet, read with the query.
    """
    queries, keys, values, log_decays, rates = (tensor[0].double() for tensor in numbers)
    states = state[0].double().clone()
    outputs = torch.zeros(HEADS, DV, dtype=torch.float64)
    for node in path:
        for head in range(HEADS):
            key, query = (t[head * KEY_HEADS // HEADS, node] for t in (keys, queries))
            decayed = math.exp(log_decays[head, node]) * states[head]
            missing = rates[head, node] * (values[head, node] - decayed.T @ key)
            states[head] = decayed + torch.outer(key, missing)
            outputs[head] = states[head].T @ query
    return outputs, states


def ancestors(parents: list[int]) -> Tensor:
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        mask[node, path_to(parents, node)] = True
    return mask


class TestRule:
    @pytest.mark.parametrize(("shape", "nodes"), SHAPES)
    @pytest.mark.parametrize("decay", [0.05, 2.0])
    def test_outputs_and_states_are_those_of_the_root_paths(self, shape, nodes, decay):
        parents = shape_of(shape, nodes)
        state, numbers = draw(nodes, decay)
        outputs, updates = tree_delta_rule(state, *numbers, ancestors(parents))
        _, keys, _, log_decays, _ = numbers
        for node in range(nodes):
            path = path_to(parents, node)
            right, right_state = recurrence(state, numbers, path)
            torch.testing.assert_close(outputs[0, :, node], right, rtol=0, atol=1e-12)
            got = path_state(state, keys[:, :, path], updates[:, :, path], log_decays[:, :, path])
            torch.testing.assert_close(got[0], right_state, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("decay", [0.05, 2.0, 100.0])
    def test_float32_stays_accurate_however_strong_the_decay(self, decay):
        """e^c underflows along a path of 64 nodes from a decay of 2 on, and e^(−c) would be infinite."""
        parents = shape_of("chain", 64)
        state, numbers = draw(64, decay, torch.float32)
        outputs, updates = tree_delta_rule(state, *numbers, ancestors(parents))
        path = path_to(parents, 63)
        for node in range(64):
            right, right_state = recurrence(state, numbers, path[: node + 1])
            torch.testing.assert_close(outputs[0, :, node].double(), right, rtol=0, atol=2e-6)
        got = path_state(state, numbers[1], updates, numbers[3])
        torch.testing.assert_close(got[0].double(), right_state, rtol=0, atol=2e-6)

    def test_nothing_reaches_a_node_from_beside_its_path(self):
        """Other values at node 2 change node 2 and its child 4, and nothing else."""
        mask = ancestors([-1, 0, 0, 1, 2, 3])
        state, (queries, keys, values, log_decays, rates) = draw(6, 0.5)
        changed = values.clone()
        changed[:, :, 2] += 1
        first, second = (
            tree_delta_rule(state, queries, keys, v, log_decays, rates, mask)[0] for v in (values, changed)
        )
        same = (first == second).all(-1).all(1)[0]
        assert same.tolist() == [True, True, False, True, False, True]


class TestConvolution:
    @pytest.mark.parametrize(("shape", "nodes"), SHAPES)
    @pytest.mark.parametrize("kernel", [1, 2, 4])
    def test_every_node_sees_its_own_path(self, shape, nodes, kernel):
        """torch's own convolution over context + root path, at its last position."""
        parents, generator = shape_of(shape, nodes), torch.Generator().manual_seed(nodes)
        context, rows, weight = (
            torch.randn(s, generator=generator, dtype=torch.float64)
            for s in ((1, kernel, 6), (1, nodes, 6), (6, kernel))
        )
        got = tree_conv(context, rows, weight, conv_table(torch.tensor(parents), kernel))
        for node in range(nodes):
            read = torch.cat([context, rows[:, path_to(parents, node)]], dim=1)[:, -kernel:]
            right = nn.functional.conv1d(read.transpose(1, 2), weight[:, None], groups=6)[..., -1]
            torch.testing.assert_close(got[:, node], right, rtol=0, atol=1e-13)

    def test_bfloat16_is_rounded_once(self):
        """To the nearest: 8 bits of significand leave half a unit, at most 2^−8 of the value."""
        generator = torch.Generator().manual_seed(0)
        context, rows, weight = (
            torch.randn(s, generator=generator).bfloat16() for s in ((1, 4, 64), (1, 40, 64), (64, 4))
        )
        table = conv_table(torch.tensor(shape_of("random", 40)), 4)
        got = tree_conv(context, rows, weight, table)
        exact = tree_conv(context.double(), rows.double(), weight.double(), table)
        assert got.dtype == torch.bfloat16
        # The sum in float32 is off by 2^−22 of its largest term, at most 20 here.
        assert bool(((got.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-5).all())


def held(nodes: int, dim: int) -> int:
    """Bytes that a layer of 16 heads and dk = dv = `dim` holds between verifying and committing a star."""
    config: Any = Qwen3_5TextConfig(
        hidden_size=8,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=dim,
        linear_value_head_dim=dim,
    )
    layer: Any = modeling_qwen3_5.Qwen3_5GatedDeltaNet(config, 0)
    cache: Any = new_cache(config)
    with torch.inference_mode(), tree_layers([layer], grow(shape_of("star", nodes), torch.Generator())):
        layer(torch.zeros(1, nodes, 8), cache=cache)
    return cache.layers[0].stash.nbytes


def test_what_is_held_grows_with_the_tree_and_not_with_the_state():
    """In float32 for 64 nodes: keys and updates 512 KiB each, log decays 4 KiB, and 1.5 MiB of inputs of 6144
    channels of the convolution. A state per node would be 64 MiB.
    """
    assert held(64, 128) == 2 * 2**19 + 2**12 + 3 * 2**19 <= 3 * 2**20
    assert held(32, 128) == held(64, 128) / 2
    assert held(64, 64) - 2**12 == (held(64, 128) - 2**12) / 2  # the state is a quarter


def layer_and_caches(name: str, prompt: int) -> tuple[Any, Tensor, list[Any]]:
    """The first recurrent layer of a model, inputs for 20 nodes, and two caches that read the same prompt."""
    model, generator = build(name), torch.Generator().manual_seed(prompt)
    layer: Any = recurrent_layers(decoder_layers(model), new_cache(model.config))[0]
    x = torch.randn(1, prompt + 20, 48, generator=generator)
    caches: list[Any] = [new_cache(model.config) for _ in range(2)]
    for cache in caches:
        layer(x[:, :prompt], cache=cache)
    return layer, x[:, prompt:], caches


@pytest.mark.parametrize("prompt", [1, 3, 30])
@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
@torch.inference_mode()
def test_a_chain_is_what_the_library_layer_reads(name, prompt):
    """Outputs, and the states once the chain is committed; convolution inputs are copied, thus the same."""
    layer, x, (ours, theirs) = layer_and_caches(name, prompt)
    right = layer(x, cache=theirs)
    with tree_layers([layer], grow(shape_of("chain", 20), torch.Generator())):
        got = layer(x, cache=ours)
    torch.testing.assert_close(got, right, rtol=0, atol=2e-6)
    ours.layers[0].keep_path(list(range(20)))
    mine, others = ours.layers[0], theirs.layers[0]
    torch.testing.assert_close(mine.recurrent_states[0], others.recurrent_states[0], rtol=0, atol=2e-6)
    assert torch.equal(mine.conv_states[0], others.conv_states[0])


def states(target: Target) -> list[Tensor]:
    layers: list[Any] = [layer for layer in target._cache.layers if isinstance(layer, RecurrentLayer)]
    return [tensor for layer in layers for tensor in (layer.recurrent_states[0], layer.conv_states[0])]


class Careful(Target):
    """A target that checks that a verify leaves the recurrent states alone, to the bit, and that a commit
    writes them where they are.
    """

    def verify(self, tree: DraftTree) -> Any:
        before = [tensor.clone() for tensor in states(self)]
        scores = super().verify(tree)
        assert all(torch.equal(a, b) for a, b in zip(before, states(self), strict=True))
        return scores

    def commit(self, path: list[int]) -> Any:
        places = [tensor.data_ptr() for tensor in states(self)]
        features = super().commit(path)
        assert [tensor.data_ptr() for tensor in states(self)] == places
        return features


@torch.inference_mode()
def go_on_without_trees(session: Session) -> float:
    """Nine more tokens through the library's own forward, on the cache that our commits have left; the
    largest difference from reading everything at once.
    """
    tokens = torch.randint(VOCAB, (9,), generator=session.generator)
    model: Any = session.model
    logits = [model(input_ids=t[None, None], cache=session.target._cache).logits[0, -1] for t in tokens]
    whole = model(input_ids=torch.tensor([session.history + tokens.tolist()]), use_cache=False).logits[0, -9:]
    return float((torch.stack(logits) - whole).abs().max())


@pytest.mark.parametrize(
    ("prompt_length", "reference"), [(1, read_alone), (3, read_alone), (25, read_step_by_step)]
)
@pytest.mark.parametrize("name", HYBRIDS)
def test_every_node_equals_its_root_path(name, prompt_length, reference):
    """Float32 logits of size 2. The library's own two ways of reading, at once and step by step, differ by as
    much as we were measured to differ from either: 6e-5.
    """
    session = Session(build(name), prompt_length, reference=reference, kind=Careful)
    worst = session.run()
    assert worst["logits"] <= 1e-4, worst
    assert go_on_without_trees(session) <= 1e-4


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_eager_attention(name):
    assert Session(build(name, "eager")).run()["logits"] <= 1e-4


class Wide:
    """torch, for modules of the library that compute in float32 whatever the model is."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], PreTrainedModel]:
    """Builds a hybrid model that computes in float64 throughout."""
    for module in (modeling_qwen3_5, modeling_qwen3_5_moe, modeling_qwen3_next):
        monkeypatch.setattr(module, "torch", Wide())
    monkeypatch.setattr(Tensor, "float", Tensor.double)

    def build_wide(name: str) -> PreTrainedModel:
        model: Any = build(name).double()
        model.config._experts_implementation = "eager"  # the grouped product knows no float64
        return model

    return build_wide


@pytest.mark.parametrize("name", HYBRIDS)
def test_in_float64_only_rounding_is_left(name, wide):
    session = Session(wide(name), kind=Careful)
    assert session.run()["logits"] <= 1e-11  # measured 6e-14
    assert go_on_without_trees(session) <= 1e-11


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_bfloat16_chooses_the_tokens_of_plain_decoding(name):
    """At least 95 % of the nodes, and elsewhere between tokens that rounding can swap: logits reach 2, where
    neighbouring bfloat16 values lie 0.016 apart, and rounding moves those of plain decoding by 0.1.
    """
    model, generator = build(name).bfloat16(), torch.Generator().manual_seed(0)
    history, gaps, nodes = torch.randint(VOCAB, (25,), generator=generator), [], 0
    for tree in list(trees(generator))[:7]:
        target = Target(model)
        target.prefill(history)
        got = target.verify(tree).logits.float()
        right = read_step_by_step(model, history.tolist(), tree)["logits"].float()
        chosen = torch.stack([right.argmax(-1), got.argmax(-1)], dim=1)
        best, other = right.gather(1, chosen)[chosen[:, 0] != chosen[:, 1]].unbind(1)
        gaps += (best - other).tolist()
        nodes += len(tree)
    report = (
        f"{name}: {len(gaps)} of {nodes} nodes differ, by logit gaps of {sorted(round(g, 4) for g in gaps)}"
    )
    print(report)
    assert len(gaps) <= 0.05 * nodes, report
    assert all(gap <= 0.1 for gap in gaps), report


def first_error(kind: type[Target], parents: list[int], model: PreTrainedModel | None = None) -> float:
    session = Session(model or build("qwen3_5"), kind=kind)
    session.prefill()
    tree = grow(parents, session.generator)
    got, right = (
        session.target.verify(tree).logits,
        read_alone(session.model, session.history, tree)["logits"],
    )
    return float((got - right).abs().max())


class TestWhatTheComparisonNotices:
    """Logits of size 2; from 1.2 to 2.4 were measured."""

    def test_layers_that_see_no_tree(self):
        assert first_error(LibraryTarget, shape_of("chain", 16)) <= 1e-4  # a chain needs no more
        assert first_error(LibraryTarget, shape_of("random", 16)) > 0.5

    def test_a_tree_that_no_layer_has_stashed_cannot_be_committed(self):
        target = LibraryTarget(build("qwen3_5"))
        target.prefill(torch.arange(5))
        target.verify(DraftTree.root_only(3))
        with pytest.raises(RuntimeError, match="read the tree as a sequence and holds no path of it; verify"):
            target.commit([0])

    @pytest.mark.parametrize("part", ["conv_table", "tree_delta_rule"])
    def test_a_convolution_or_a_rule_along_the_order_of_nodes(self, part, monkeypatch):
        def table_of_a_chain(parents: Tensor, kernel: int) -> Tensor:
            return conv_table(torch.arange(len(parents)) - 1, kernel)

        def rule_of_a_chain(state: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
            queries, keys, values, log_decays, rates, mask = rest
            return tree_delta_rule(
                state, queries, keys, values, log_decays, rates, torch.ones_like(mask).tril()
            )

        wrong = {"conv_table": table_of_a_chain, "tree_delta_rule": rule_of_a_chain}[part]
        model = build("qwen3_5")
        check_supported(model)  # before a part of it is broken, else its probe would refuse the model
        monkeypatch.setattr(gated_delta_layers, part, wrong)
        assert first_error(Target, shape_of("random", 16), model) > 0.5

    def test_a_commit_of_other_nodes(self):
        session = Session(build("qwen3_5"))
        session.prefill()
        tree = grow([-1, 0, 0, 1], session.generator)
        session.target.verify(tree)
        recurrent: Any = session.target._cache.layers[0]
        recurrent.stash = recurrent.stash[torch.tensor([0, 2, 1, 3])]
        session.target.commit([0, 1, 3])
        session.history += tree.token_ids[[0, 1, 3]].tolist()
        session.round(grow([-1], session.generator))
        assert session.worst["logits"] > 0.5


class TestHook:
    def test_forwards_come_back_after_an_error(self):
        model = build("qwen3_5")
        layers = recurrent_layers(decoder_layers(model), new_cache(model.config))
        target = Target(model)
        target.prefill(torch.arange(5))
        with pytest.raises(IndexError):
            target.verify(DraftTree.root_only(VOCAB))
        assert len(layers) == 3
        assert not any("forward" in vars(layer) for layer in layers)

    def test_a_forward_set_by_others_comes_back(self):
        layer: Any = nn.Linear(2, 2)
        layer.forward = mine = lambda x: x
        with tree_layers([layer], DraftTree.root_only(0)):
            assert layer.forward is not mine
        assert layer.forward is mine

    def test_prompts_are_read_by_the_library(self, monkeypatch):
        read, library = [], modeling_qwen3_5.Qwen3_5GatedDeltaNet.forward
        monkeypatch.setattr(
            modeling_qwen3_5.Qwen3_5GatedDeltaNet,
            "forward",
            lambda self, hidden_states, **kwargs: (
                read.append(hidden_states.shape[1]) or library(self, hidden_states, **kwargs)
            ),
        )
        target = Target(build("qwen3_5"))
        read.clear()  # of what the probe read
        target.prefill(torch.arange(5))
        assert read == [5, 5, 5]
        target.verify(DraftTree.root_only(3))
        assert read == [5, 5, 5]

    def test_models_without_recurrent_layers_are_left_alone(self):
        assert recurrent_layers(decoder_layers(build("llama")), new_cache(build("llama").config)) == []


@pytest.fixture(scope="module")
def multimodal() -> Any:
    """The class of the published checkpoints, with positions for images and a vision tower."""
    rope = {
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 1.0,
        "mrope_section": [4, 2, 2],
    }
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=48)
    config = Qwen3_5Config(text_config=HYBRID | {"rope_parameters": rope}, vision_config=vision)
    torch.manual_seed(0)
    return Qwen3_5ForConditionalGeneration(config).eval()


class TestMultimodalModels:
    def test_text(self, multimodal):
        assert Session(multimodal, kind=Careful).run()["logits"] <= 1e-4
        assert multimodal.model.rope_deltas is None

    def test_positions_behind_images(self, multimodal):
        """The library's own decoding moves rotary positions by `rope_deltas`, which an image before would
        have set; without it, logits were measured to differ by 0.5.
        """
        session = Session(multimodal, reference=partial(read_step_by_step, prompt_length=25))
        session.prefill()
        multimodal.model.rope_deltas = torch.tensor([[-9]])
        for tree in list(trees(session.generator))[:3]:
            session.round(tree)
        assert session.worst["logits"] <= 1e-4

    def test_a_text_prompt_forgets_the_images_of_another(self, multimodal):
        multimodal.model.rope_deltas = torch.tensor([[-9]])
        assert Session(multimodal).run()["logits"] <= 1e-4


def spread(model: Any, places: dict[str, Any], main: Any, **options: Any) -> Any:
    """The model as a `device_map` of the user would leave it."""
    return dispatch_model(model, places, main_device=main, **options)


def same_rounds(pair: list[Any], close: Callable[[Tensor, Tensor], None]) -> None:
    """Compare the scores of two models over a prompt and a few rounds."""
    sessions = [Session(model, kind=Careful) for model in pair]
    for session in sessions:
        session.target.prefill(torch.tensor(session.history))
    for tree in list(trees(sessions[0].generator))[:4]:
        right, got = (session.target.verify(tree).logits for session in sessions)
        close(got, right)
        for session in sessions:
            session.target.commit(tree.path(len(tree) - 1))


class TestSeveralDevices:
    """What `device_map` sets up through accelerate."""

    @pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
    def test_offloaded_weights(self, name, tmp_path):
        """Most weights lie on the disk and come for each call: the same operations, the same bits."""
        here, gone = ["embed_tokens", "layers.1", "norm", "rotary_emb"], ["layers.0", "layers.2", "layers.3"]
        places = {f"model.{part}": "cpu" for part in here} | {f"model.{part}": "disk" for part in gone}
        split = spread(build(name), places | {"lm_head": "disk"}, "cpu", offload_dir=str(tmp_path))
        layers: Any = recurrent_layers(decoder_layers(split), new_cache(split.config))
        assert [layer.A_log.device.type for layer in layers] == ["meta", "cpu", "meta"]
        before = [dict(vars(layer)) for layer in layers]
        same_rounds(
            [build(name), split], lambda got, right: torch.testing.assert_close(got, right, rtol=0, atol=0)
        )
        for layer, was in zip(layers, before, strict=True):
            assert vars(layer)["forward"] is was["forward"]
            assert vars(layer)["_old_forward"] is was["_old_forward"]

    def test_every_tensor_is_where_its_layer_is(self):
        """Two devices that hold shapes only and, like real ones, refuse an operation across them."""
        script = Path(__file__).with_name("two_devices.py")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split("\n")[-2] == "logits chip:1, states chip:0 chip:0 chip:1"

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_half_on_a_gpu(self):
        """Logits of size 2; another device sums in another order."""
        first, second = (
            ["embed_tokens", "rotary_emb", "layers.0", "layers.1"],
            ["layers.2", "layers.3", "norm"],
        )
        places = {f"model.{part}": 0 for part in first} | {f"model.{part}": "cpu" for part in second}
        split = spread(build("qwen3_5"), places | {"lm_head": "cpu"}, "cuda:0")
        same_rounds(
            [build("qwen3_5"), split],
            lambda got, right: torch.testing.assert_close(got.cpu(), right, rtol=0, atol=1e-4),
        )
