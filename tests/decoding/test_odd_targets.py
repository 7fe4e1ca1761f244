"""Targets that say the mask token, change their rotation with the length, or have damaged weights."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import Phi3Config, Qwen3Config

from ddtree_core.decoding import Sampler, decode, generate
from ddtree_core.models import ModelPair, load_pair
from ddtree_core.models.draft_config import DFlashConfig
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.tiny import MASK_TOKEN_ID, byte_tokenizer, tiny_target
from tests.decoding.drafts import Remembered
from tests.decoding.library import METHODS, STORY, by_library


class TestMaskToken:
    """The mask token is an ordinary token when the target generates it: nothing is removed by value."""

    @pytest.fixture
    def pair(self) -> ModelPair:
        """A target that says the mask token every now and then."""
        pair = load_pair("tiny-llama", packed=False)
        head: Any = pair.model.get_output_embeddings()
        with torch.no_grad():
            head.weight[MASK_TOKEN_ID] *= 3
        return pair

    def test_is_accepted_from_a_draft_and_kept(self, pair):
        expected = by_library(pair, pair.tokenizer(STORY).input_ids, 30)
        assert 3 <= expected.count(MASK_TOKEN_ID) < len(expected)
        for method, budget in METHODS:
            assert generate(pair, STORY, method, budget=budget, max_new_tokens=30).ids == expected
        rounds = generate(pair, STORY, "ddtree", budget=8, max_new_tokens=30).rounds
        assert MASK_TOKEN_ID in [int(r.tree.token_ids[node]) for r in rounds for node in r.path[1:]]

    def test_is_kept_beside_a_drafter_that_is_fed_with_it(self, pair):
        body = Qwen3Config(
            vocab_size=260, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16,
        )  # fmt: skip
        config = DFlashConfig(
            body=body, block_size=4, mask_token_id=MASK_TOKEN_ID, target_layer_ids=(1, 3),
            num_target_layers=4, target_hidden_size=64, draft_vocab_size=260, causal=(False,),
            windows=(None,),
        )  # fmt: skip
        torch.manual_seed(0)
        pair = replace(pair, draft=DFlashModel(config).eval())
        expected = by_library(pair, pair.tokenizer(STORY).input_ids, 30)
        for method, budget in METHODS:
            assert generate(pair, STORY, method, budget=budget, max_new_tokens=30).ids == expected


class TestRotationThatChangesWithTheLength:
    """Phi-3's longrope has one set of frequencies up to 48 tokens, and another for texts beyond."""

    @pytest.fixture
    def pair(self) -> ModelPair:
        rope = dict(
            rope_type="longrope", rope_theta=1e4, short_factor=[1.0] * 8,
            long_factor=[4.0 + i for i in range(8)], original_max_position_embeddings=48,
            partial_rotary_factor=1.0,
        )  # fmt: skip
        config = Phi3Config(
            vocab_size=260, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=48,
            initializer_range=0.3, tie_word_embeddings=False, eos_token_id=258, pad_token_id=258,
            bos_token_id=256, rope_parameters=rope,
        )  # fmt: skip
        return ModelPair("phi", tiny_target(config), byte_tokenizer(), Remembered())

    @pytest.mark.parametrize(
        ("prompt", "new", "method", "budget"),
        [
            (30, 19, "autoregressive", None),  # 48 tokens are read, the last one is not
            (30, 12, "dflash", None),  # before the last token, drafts reach seven further
            (30, 12, "ddtree", 16),
            (30, 16, "ddtree", 3),
            (49, 24, "autoregressive", None),  # beyond from the start
            (60, 24, "dflash", None),
            (60, 24, "ddtree", 16),
        ],
    )
    def test_texts_on_one_side_are_the_librarys(self, pair, prompt, new, method, budget):
        ids = [(13 * i * i + 7 * i) % 250 for i in range(prompt)]
        run = generate(pair, ids, method, budget=budget, max_new_tokens=new)
        assert run.ids == by_library(pair, ids, new)
        assert len(run.ids) == new

    @pytest.mark.parametrize(
        ("prompt", "new", "method", "budget", "fitting"),
        [
            (30, 40, "autoregressive", None, 19),
            (30, 40, "ddtree", 16, 12),
            (30, 13, "dflash", None, 12),
            (30, 17, "ddtree", 3, 16),
            (48, 2, "autoregressive", None, 1),
        ],
    )
    def test_texts_that_cross_are_refused(self, pair, prompt, new, method, budget, fitting):
        sentence = rf"^phi rotates all tokens in another way .* max_new_tokens of {fitting} or less"
        with pytest.raises(ValueError, match=sentence):
            decode(pair, [5] * prompt, method, budget=budget, max_new_tokens=new)


class TestLogitsThatAreNotFinite:
    """A damaged target gets one sentence, at the pass that shows it."""

    SENTENCE = (
        r"^the target's logits are NaN or infinite, so that they name no token; its weights are damaged"
    )

    @pytest.fixture
    def pair(self) -> ModelPair:
        pair = replace(load_pair("tiny-llama", packed=False), draft=Remembered())
        pair.open_target()  # the first one of a model verifies a probe, which must be sound for what follows
        return pair

    @pytest.mark.parametrize("sampler", [Sampler(), Sampler(1.0)], ids=["greedy", "sampled"])
    @pytest.mark.parametrize(("method", "budget"), METHODS)
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_in_the_head(self, pair, method, budget, value, sampler):
        head: Any = pair.model.get_output_embeddings()
        with torch.no_grad():
            head.weight[7] = value
        run = decode(pair, STORY, method, budget=budget, sampler=sampler)
        with pytest.raises(ValueError, match=self.SENTENCE):
            next(run)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_before_the_first_text(self, value):
        """The probe of a model that has not been used meets them first."""
        pair = load_pair("tiny-llama", packed=False)
        head: Any = pair.model.get_output_embeddings()
        with torch.no_grad():
            head.weight[7] = value
        sentence = r"^LlamaForCausalLM gives logits that are NaN, infinite or all alike; its weights are"
        with pytest.raises(ValueError, match=sentence):
            decode(pair, STORY)

    @pytest.mark.parametrize(("method", "budget"), METHODS)
    def test_in_the_row_of_a_token_that_comes_later(self, pair, method, budget):
        """Rounds before a pass that reads the token are as they would be; the draft remembers its own."""
        expected, place = self.damage_a_later_token(pair, method, budget)
        run = decode(pair, STORY, method, budget=budget, max_new_tokens=20)
        with pytest.raises(ValueError, match=self.SENTENCE):
            list(run)
        assert run.ids == expected[: len(run.ids)]
        assert 1 <= len(run.ids) <= place + 1

    def test_a_text_that_ends_before_is_whole(self, pair):
        expected, place = self.damage_a_later_token(pair, "autoregressive", None)
        run = generate(pair, STORY, "autoregressive", stop=expected[place], max_new_tokens=20)
        assert run.ids == expected[: place + 1]

    def damage_a_later_token(self, pair: ModelPair, method: str, budget: int | None) -> tuple[list[int], int]:
        """The text before the damage, and the place in it of a token whose embedding then becomes NaN."""
        made = generate(pair, STORY, method, budget=budget, max_new_tokens=20)
        place = next(i for i in range(6, 20) if made.ids[i] not in (*made.prompt_ids, *made.ids[:i]))
        table: Any = pair.model.get_input_embeddings()
        with torch.no_grad():
            table.weight[made.ids[place]] = math.nan
        return made.ids, place
