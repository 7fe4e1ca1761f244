"""Cache layers append, crop and move rows as the library's own layer and as index arithmetic say."""

import random
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, Qwen3_5TextConfig, Qwen3Config
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ddtree_core.models import UnsupportedModelError
from ddtree_core.models.cache import (
    GrowingLayer,
    RecurrentLayer,
    keep_path,
    layer_kinds,
    new_cache,
    open_tree,
    sliding_window,
)
from ddtree_core.models.gated_delta import TreeStash

WINDOW = 7
CONFIG = Qwen3Config(
    num_hidden_layers=2,
    use_sliding_window=True,
    sliding_window=WINDOW,
    layer_types=["full_attention", "sliding_attention"],
)
HEADS, DIM = 2, 3


def rows(numbers: list[int]) -> tuple[Tensor, Tensor]:
    """Keys and values (1, heads, rows, dim) that carry these numbers, keys as they are and values negated."""
    keys = torch.tensor(numbers, dtype=torch.float32)[None, None, :, None].expand(1, HEADS, -1, DIM)
    return keys, -keys


def numbers(layer: Any) -> list[int]:
    """The numbers that a layer holds, once it is clear that keys, values, heads and dimensions agree."""
    held = [int(number) for number in layer.keys[0, 0, :, 0]]
    keys, values = rows(held)
    assert torch.equal(layer.keys, keys)
    assert torch.equal(layer.values, values)
    return held


@pytest.mark.parametrize("seed", range(5))
def test_growing_layer_equals_the_library_layer(seed):
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    ours, theirs = GrowingLayer(), DynamicLayer()
    for _ in range(200):
        if ours.get_seq_length() and choose.random() < 0.4:
            count = choose.randint(0, ours.get_seq_length())
            ours.crop(-count)
            theirs.crop(-count)
        else:
            new = choose.choice([1, 1, 2, 17, 90])
            keys, values = (torch.randn(1, HEADS, new, DIM, generator=generator) for _ in range(2))
            for got, right in zip(ours.update(keys, values), theirs.update(keys, values), strict=True):
                assert torch.equal(got, right)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(5) == theirs.get_mask_sizes(5)
        for got, right in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            assert got is not None
            assert right is not None
            assert torch.equal(got, right)


def test_growing_layer_copies_history_a_logarithmic_number_of_times():
    layer, places = GrowingLayer(), []
    for number in range(1000):
        layer.update(*rows([number]))
        assert layer.keys is not None
        places.append(layer.keys.data_ptr())
    assert numbers(layer) == list(range(1000))
    moves = sum(a != b for a, b in pairwise(places))
    assert moves == 4  # 64 rows, then at least 130, 262, 526, 1054


class TestKeepPath:
    """Rows are numbered by position in the text: history 0, 1, …; node i of the tree is 1000 + i."""

    @staticmethod
    def append_tree(cache: Cache, nodes: int) -> None:
        open_tree(cache)
        for layer in range(2):
            cache.update(*rows([1000 + node for node in range(nodes)]), layer)

    @pytest.mark.parametrize("seed", range(30))
    def test_random_rounds(self, seed):
        choose = random.Random(seed)
        prompt = choose.choice([0, 1, 3, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 40])
        cache = new_cache(CONFIG)
        text = list(range(prompt))
        for layer in range(2 if prompt else 0):
            cache.update(*rows(text), layer)
        for _ in range(12):
            nodes = choose.randint(1, 20)
            path = [0, *sorted(choose.sample(range(1, nodes), choose.randint(0, nodes - 1)))]
            path = choose.choice([path, path, path, []])
            self.append_tree(cache, nodes)
            keep_path(cache, len(text), path)
            text = text + [1000 + node for node in path]
            layers: Any = cache.layers
            assert [numbers(layer) for layer in layers] == [text, text[-(WINDOW - 1) :]]
            full, sliding = layers
            assert full.get_seq_length() == sliding.get_seq_length() == len(text)
            assert sliding.record_past is False

    def test_the_first_child_again_and_again_moves_nothing(self):
        cache = new_cache(CONFIG)
        for layer in range(2):
            cache.update(*rows([0, 1]), layer)
        for history in accumulate([2, 3, 3]):
            self.append_tree(cache, 6)
            keep_path(cache, history, [0, 1, 2])
        assert numbers(cache.layers[0]) == [0, 1, *[1000, 1001, 1002] * 3]
        assert numbers(cache.layers[1]) == [1000, 1001, 1002] * 2

    def test_sliding_layers_go_on_as_the_library_would(self):
        """After a commit, plain updates give what a cache that never saw a tree gives."""
        ours, theirs = new_cache(CONFIG), DynamicCache(config=CONFIG)
        for layer in range(2):
            ours.update(*rows(list(range(9))), layer)
            theirs.update(*rows([*range(9), 1000, 1004]), layer)
        self.append_tree(ours, 8)
        keep_path(ours, 9, [0, 4])
        for number in range(20, 30):
            for layer in range(2):
                got, right = (cache.update(*rows([number]), layer) for cache in (ours, theirs))
                assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))
            assert ours.get_seq_length() == theirs.get_seq_length()


class TestRecurrentLayer:
    """Convolution inputs are numbered by position in the text as above; the kernel reads four of them."""

    @staticmethod
    def stash(numbers: list[int]) -> TreeStash:
        count = len(numbers)
        rows = torch.tensor(numbers, dtype=torch.float32)[None, :, None].expand(1, count, 6)
        keys = torch.eye(count)[None, None]  # node i writes to row i of the state only
        return TreeStash(keys, torch.ones(1, 1, count, 2), torch.zeros(1, 1, count).fill_(-1.0), rows)

    @staticmethod
    def layer(prompt: list[int], size: int) -> RecurrentLayer:
        layer = RecurrentLayer()
        rows = torch.tensor(prompt, dtype=torch.float32)[None, None].expand(1, 6, -1)
        layer.update_conv_state(rows, conv_kernel_size=4)
        layer.update_recurrent_state(torch.zeros(1, 1, size, 2))
        return layer

    @pytest.mark.parametrize("prompt", [1, 3, 4, 9])
    @pytest.mark.parametrize("path", [[0], [0, 2], [0, 1, 3, 4], [0, 1, 2, 3, 4]])
    def test_the_last_inputs_of_the_path_stay(self, prompt, path):
        layer = self.layer(list(range(1, prompt + 1)), size=5)
        layer.stash = self.stash([1000 + node for node in range(5)])
        layer.keep_path(path)
        # In front of a short prompt the library puts zeros.
        text = [0, 0, 0, *range(1, prompt + 1), *(1000 + node for node in path)]
        assert layer.conv_states[0] is not None
        assert layer.conv_states[0][0].tolist() == [text[-4:]] * 6
        assert layer.stash is None

    def test_the_state_decays_behind_each_node_of_the_path(self):
        """Node k of a path of three was written three minus k steps ago, each a factor of 1/e."""
        layer = self.layer([1], size=5)
        layer.stash = self.stash(list(range(5)))
        layer.keep_path([0, 2, 3])
        assert layer.recurrent_states[0] is not None
        right = torch.tensor([-2.0, -torch.inf, -1.0, 0.0, -torch.inf]).exp()
        torch.testing.assert_close(layer.recurrent_states[0][0, 0], right[:, None].expand(5, 2))

    def test_no_path_leaves_it_as_it_was(self):
        layer = self.layer([1, 2], size=5)
        layer.stash = self.stash(list(range(5)))
        layer.keep_path([])
        assert layer.conv_states[0] is not None
        assert layer.conv_states[0][0].tolist() == [[0, 0, 1, 2]] * 6
        assert layer.stash is None


def test_layers_follow_the_config():
    small: Any = dict(num_hidden_layers=2)
    kinds = [
        (LlamaConfig(**small), [GrowingLayer] * 2, {"full_attention"}, None),
        (CONFIG, [GrowingLayer, DynamicSlidingWindowLayer], {"full_attention", "sliding_attention"}, WINDOW),
        (MistralConfig(**small, sliding_window=5), [DynamicSlidingWindowLayer] * 2, {"sliding_attention"}, 5),
        # A recurrent layer needs no mask.
        (
            Qwen3_5TextConfig(num_hidden_layers=4),
            [*[RecurrentLayer] * 3, GrowingLayer],
            {"full_attention"},
            None,
        ),
    ]
    for config, types, masks, window in kinds:
        cache = new_cache(config)
        assert [type(layer) for layer in cache.layers] == types
        assert layer_kinds(cache) == masks
        assert sliding_window(cache) == window


def test_several_windows_are_refused():
    cache = Cache(layers=[DynamicSlidingWindowLayer(sliding_window=w) for w in (4, 8)])
    with pytest.raises(
        UnsupportedModelError, match=r"several windows \[4, 8\] are not supported, one window is$"
    ):
        sliding_window(cache)
