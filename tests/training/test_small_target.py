"""A small hybrid target from scratch: tokenizer, text, batches, training, resume, and what is saved."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ddtree_core.training.openings import complete_answer
from ddtree_core.training.small_target import (
    SPECIAL_TOKENS,
    ConversationBatches,
    TargetPlan,
    encode_conversations,
    hybrid_config,
    new_target,
    pad,
    prediction_loss,
    save_target,
    text_loss,
    train_target,
    train_tokenizer,
)

FRUITS = ("apples", "pears", "plums", "figs")
TALKS = [
    (f"I have {n} {fruit} and eat {k}.", f"Then {n - k} {fruit} are left.")
    for n in range(2, 10)
    for k in range(1, n)
    for fruit in FRUITS
]
PLAN = TargetPlan(steps=40, warmup=5, learning_rate=1e-2)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for talk in TALKS for text in talk], vocab_size=280)


def tiny(tokenizer):
    return new_target(hybrid_config(tokenizer, hidden=64, layers=4, mlp=128))


@pytest.fixture(scope="module")
def trained(tokenizer):
    model = tiny(tokenizer)
    return model, [step.loss for step in train_target(model, tokenizer, TALKS, PLAN)]


def test_tokenizer_reads_every_string_back(tokenizer):
    """Byte-level: the 256 byte values as characters, and text from other scripts, come back as they were."""
    for text in ("".join(map(chr, range(256))), "naïve 日本語 🌉\t\r\n  x", "def f(x):\n    return x", ""):
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_tokenizer_keeps_digits_apart_and_chat_tokens_whole(tokenizer):
    """Five digits, five tokens; the prompt has the chat template's form, with one id per chat token."""
    assert [tokenizer.decode(i) for i in tokenizer("20394").input_ids] == list("20394")
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    ids = ids["input_ids"]
    start, end, mask = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
    assert [i for i in ids if i in (start, end, mask)] == [start, end, start]
    assert tokenizer.decode(ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert (tokenizer.eos_token_id, tokenizer.mask_token_id, len(tokenizer)) == (end, mask, 280)


def test_vocabulary_smaller_than_the_bytes_is_refused():
    with pytest.raises(ValueError, match="are 259"):  # 256 bytes and three special tokens
        train_tokenizer(["text"], vocab_size=258)


def test_three_recurrent_layers_to_one_of_full_attention(tokenizer):
    config = hybrid_config(tokenizer)
    assert config.layer_types == (["linear_attention"] * 3 + ["full_attention"]) * 2
    for hidden, layers in ((100, 8), (192, 6)):
        with pytest.raises(ValueError, match="multiple of 64"):
            hybrid_config(tokenizer, hidden=hidden, layers=layers)


def test_new_recurrent_layers_have_a_memory(tokenizer):
    """Decay per token is exp(−A·dt); dt = softplus(bias) lies in [0.001, 0.1] and A below 16, so no head
    keeps less than exp(−1.6) of its state. The library's dt = softplus(1) = 1.31 keeps as little as exp(−21).
    """
    model = tiny(tokenizer)
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "dt_bias")]
    assert len(layers) == 3
    for layer in layers:
        dt = torch.nn.functional.softplus(layer.dt_bias)
        assert bool(((dt > 0.999e-3) & (dt < 0.1001)).all())
        assert bool(((-layer.A_log.exp() * dt).exp() > math.exp(-1.6)).all())


@pytest.mark.parametrize(
    ("answer", "complete"),
    [
        ("One line. And another. This one is cut o", "One line. And another."),
        ("All of it is here.", "All of it is here."),
        # The long sentence comes a second time: what follows is a loop.
        (
            "It is a long sentence about one thing. Next. It is a long sentence about one thing. Ne",
            "It is a long sentence about one thing. Next.",
        ),
        ("See:\n```python\nx = 1\ny = [2, ", "See:\n```python\nx = 1\n```"),
        ("nothing ends here", ""),
    ],
)
def test_cut_answers_end_where_they_could_have_ended(answer, complete):
    assert complete_answer(answer) == complete


def test_every_epoch_draws_every_conversation_once():
    """13 rows of distinct lengths by 4: three steps draw 12 different ones, in another order next epoch."""
    batches = ConversationBatches([torch.full((n,), n) for n in range(2, 15)], size=4, seed=3)
    epochs = [[batches[step][:, 0].tolist() for step in range(e * 3, e * 3 + 3)] for e in range(2)]
    for epoch in epochs:
        assert len({n for batch in epoch for n in batch}) == 12
    assert epochs[0] != epochs[1]
    assert torch.equal(batches[4], batches[4])
    with pytest.raises(ValueError, match="there are 1 conversations, a step takes 4"):
        ConversationBatches([torch.arange(3)], size=4, seed=0)


@torch.inference_mode()
def test_padding_counts_for_nothing(tokenizer):
    """The loss of a padded batch is the mean over its real tokens, as computed row by row without padding."""
    model = tiny(tokenizer).eval()
    rows = [torch.arange(5, 5 + n) for n in (70, 3, 9)]
    alone = sum(float(prediction_loss(model, row[None], "sum")) for row in rows) / sum(
        len(r) - 1 for r in rows
    )
    assert float(prediction_loss(model, pad(rows))) == pytest.approx(alone, rel=1e-5)


def test_training_learns_more_than_token_frequencies(tokenizer, trained):
    """No predictor without context gets below the text's unigram entropy; here most tokens follow from those
    in front of them, and 40 steps reach a quarter of it.
    """
    counts = Counter(
        i for row in encode_conversations(tokenizer, TALKS, PLAN.max_tokens) for i in row[1:].tolist()
    )
    total = sum(counts.values())
    unigram = -sum(c / total * math.log(c / total) for c in counts.values())
    model, losses = trained
    assert losses[0] == pytest.approx(math.log(len(tokenizer)), rel=0.1)  # nothing is known at first
    assert text_loss(model.eval(), tokenizer, TALKS[::9]).nats_per_token < unigram / 4


def test_text_loss_counts_tokens_and_bytes(tokenizer):
    """A model whose logits are all equal needs ln(vocabulary) nats for each token, whatever the text."""
    model = tiny(tokenizer).eval()
    embedding: Any = model.get_input_embeddings()
    embedding.weight.data.zero_()
    row = encode_conversations(tokenizer, TALKS[:1], 99)[0]
    size = len(tokenizer.decode(row[1:]).encode())
    loss = text_loss(model, tokenizer, TALKS[:1])
    assert loss.tokens == len(row) - 1
    assert loss.nats_per_token == pytest.approx(math.log(280), rel=1e-6)
    assert loss.bits_per_byte == pytest.approx(loss.tokens * math.log2(280) / size, rel=1e-6)


def test_interrupted_training_ends_in_the_same_weights(tokenizer, tmp_path):
    """Six steps at once, and three, then a new process' model that goes on: equal bits."""
    plan = replace(PLAN, steps=6)
    whole, first, second = (tiny(tokenizer) for _ in range(3))
    losses = [step.loss for step in train_target(whole, tokenizer, TALKS, plan)]
    begun = train_target(first, tokenizer, TALKS, plan, folder=tmp_path, save_every=3)
    assert [next(begun).loss for _ in range(4)] == losses[:4]  # the fourth step is lost
    resumed = list(train_target(second, tokenizer, TALKS, plan, folder=tmp_path, save_every=3))
    assert [(step.number, step.loss) for step in resumed] == list(enumerate(losses))[3:]
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert list(train_target(second, tokenizer, TALKS, plan, folder=tmp_path)) == []  # it is finished


def test_another_plans_folder_is_refused(tokenizer, tmp_path):
    plan = replace(PLAN, steps=1)
    list(train_target(tiny(tokenizer), tokenizer, TALKS, plan, folder=tmp_path))
    other = train_target(tiny(tokenizer), tokenizer, TALKS, replace(plan, steps=2, seed=1), folder=tmp_path)
    with pytest.raises(ValueError, match="other steps, seed; use the same plan"):
        next(other)


def test_saved_target_is_the_rounded_one(tokenizer, trained, tmp_path):
    """Loaded again in float32, it gives the bits of the trained model rounded to bfloat16; its tokenizer
    reads and writes the same ids, and generation stops at <|im_end|>.
    """
    model, _ = trained
    save_target(model, tokenizer, tmp_path)
    assert next(model.parameters()).dtype == torch.float32  # the trained one is left alone
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    reread = AutoTokenizer.from_pretrained(tmp_path)
    assert type(loaded).__name__ == "Qwen3_5ForCausalLM"
    rounded = tiny(tokenizer).eval()
    rounded.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    ids = encode_conversations(tokenizer, TALKS[:1], 99)[0][None]
    with torch.inference_mode():
        assert torch.equal(loaded(input_ids=ids).logits, rounded(input_ids=ids).logits)
    text = "<|im_start|>user\nI have 12 figs ~ 日本<|im_end|>\n"
    assert reread(text).input_ids == tokenizer(text).input_ids
    assert (reread.decode(reread(text).input_ids), reread.chat_template) == (text, tokenizer.chat_template)
    assert loaded.generation_config.eos_token_id == reread.eos_token_id
    assert reread.mask_token_id == tokenizer.mask_token_id
    assert not (tmp_path / "training.pt").exists()
