"""A corpus: written in whole shards, continued after an interruption, never mixed between targets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddtree_core.models import ModelPair
from ddtree_core.paths import data_dir
from ddtree_core.training import corpus as corpus_module
from ddtree_core.training.archive import Texts, conversations, load_texts, restore, texts_of
from ddtree_core.training.batches import Batches, like_length
from ddtree_core.training.corpus import Corpus, write_corpus
from ddtree_core.training.held_out import never_written
from ddtree_core.training.identity import CorpusError, identity
from ddtree_core.training.openings import HeldOut, draw_openings, periodic, user_turn


def write_small(pair: ModelPair, folder: Path, shards: range = range(3), **options) -> Corpus:
    options = {"layer_ids": (0, 2), "stop_ids": pair.stop_ids, "batch": 6, "max_new_tokens": 8} | options
    write_corpus(pair.model, pair.tokenizer, folder, shards=shards, **options)
    return Corpus(folder)


def contents(corpus: Corpus) -> list[tuple]:
    return [(t.ids.tolist(), t.prompt_length, t.domain, t.features.tolist()) for t in corpus]


def test_texts_come_back_with_their_own_features(pair: ModelPair, corpus: Corpus):
    """Reference: the target's own pass over one text in the middle of the shard, rounded to float16."""
    text = corpus[17]
    with torch.no_grad():
        out = pair.model.model(text.ids[None, :-1], output_hidden_states=True)
    expected = torch.cat([out.hidden_states[k + 1][0] for k in corpus.identity.layer_ids], dim=-1)
    torch.testing.assert_close(text.features.float(), expected, rtol=2e-3, atol=2e-3)
    assert text.ids[: text.prompt_length].tolist() == list(range(37, 40 + 17 % 6))
    assert corpus.answer_tokens == 192 * 40


def test_an_interrupted_writing_continues_to_the_same_corpus(
    pair: ModelPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Interrupted in the second of three shards: the first stays, and the rest is as if never stopped."""
    whole = contents(write_small(pair, tmp_path / "whole"))
    save = corpus_module.save_shard

    def fail_second(path: Path, *rest):
        if path.name == "shard-00001.safetensors":
            raise KeyboardInterrupt
        save(path, *rest)

    monkeypatch.setattr(corpus_module, "save_shard", fail_second)
    with pytest.raises(KeyboardInterrupt):
        write_small(pair, tmp_path / "cut")
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == ["corpus.json", "shard-00000.safetensors"]
    monkeypatch.undo()
    assert contents(write_small(pair, tmp_path / "cut")) == whole


def test_two_writers_share_the_work(pair: ModelPair, tmp_path: Path):
    write_small(pair, tmp_path / "shared", range(0, 3, 2))
    shared = write_small(pair, tmp_path / "shared", range(1, 3, 2))
    assert contents(shared) == contents(write_small(pair, tmp_path / "alone"))


@pytest.mark.parametrize("other", ["target", "tokenizer", "layer ids"])
def test_another_targets_corpus_is_refused(
    other: str, pair: ModelPair, tiny_pair: Callable[..., ModelPair], tmp_path: Path
):
    write_small(pair, tmp_path, range(1))
    tokenizer = pair.tokenizer
    if other == "tokenizer":
        tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
        tokenizer.chat_template = str(pair.tokenizer.chat_template) + " "
    changed = replace(
        pair,
        model=tiny_pair("tiny-llama", packed=False).model if other == "target" else pair.model,
        tokenizer=tokenizer,
    )
    layer_ids = (0, 3) if other == "layer ids" else (0, 2)
    with pytest.raises(CorpusError, match=f"was made with another {other} .* write a new corpus"):
        write_small(changed, tmp_path, layer_ids=layer_ids)


def test_training_refuses_a_corpus_of_another_target(
    pair: ModelPair, tiny_pair: Callable[..., ModelPair], corpus: Corpus
):
    other = tiny_pair("tiny-llama", packed=False)
    own = identity(other.model, other.tokenizer, corpus.identity.layer_ids)
    with pytest.raises(CorpusError, match="was made with another target"):
        own.check(corpus.identity, corpus.folder)


def test_a_folder_without_a_corpus_is_one_sentence(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"holds no corpus\.json; write a corpus into it first"):
        Corpus(tmp_path)


def test_the_identity_knows_packed_and_rounded_weights(tiny_pair: Callable[..., ModelPair]):
    """One target, loaded with packed linears, plain, and in bfloat16; another seed is another target."""
    names = ("tiny-llama", "tiny-qwen3")
    plain, other = (tiny_pair(name, packed=False) for name in names)
    same = [
        identity(pair.model, pair.tokenizer, (0, 1)).target
        for pair in (
            plain,
            tiny_pair("tiny-llama", packed=True),
            tiny_pair("tiny-llama", packed=False, dtype="bfloat16"),
        )
    ]
    assert len(set(same)) == 1
    assert identity(other.model, other.tokenizer, (0, 1)).target != same[0]


def test_texts_without_features_restore_the_corpus(pair: ModelPair, corpus: Corpus, tmp_path: Path):
    """The archive holds every text; one pass of the target restores the features to float16's precision."""
    texts_of([corpus]).save(tmp_path / "texts.npz")
    restored = restore(
        pair.model, pair.tokenizer, tmp_path / "texts.npz", tmp_path / "corpus", corpus.identity.layer_ids
    )
    by_ids = {tuple(t.ids.tolist()): t for t in restored}
    assert len(restored) == len(corpus) == len(by_ids)
    for text in corpus:
        again = by_ids[tuple(text.ids.tolist())]
        assert (again.prompt_length, again.domain) == (text.prompt_length, text.domain)
        torch.testing.assert_close(again.features, text.features, rtol=4e-3, atol=4e-3)


def test_texts_of_another_target_are_refused(
    tiny_pair: Callable[..., ModelPair], corpus: Corpus, tmp_path: Path
):
    texts_of([corpus]).save(tmp_path / "texts.npz")
    other = tiny_pair("tiny-llama", packed=False)
    with pytest.raises(CorpusError, match="another target"):
        restore(other.model, other.tokenizer, tmp_path / "texts.npz", tmp_path / "corpus", (0, 1, 2))
    with pytest.raises(CorpusError, match="there are no texts at"):
        load_texts(tmp_path / "none.npz")


def test_batches_draw_anchors_from_answers_and_every_text_once_an_epoch(corpus: Corpus):
    """An anchor needs the features before it and a token behind it: prompt length ≤ anchor ≤ n − 2."""
    numbers = list(range(0, len(corpus), 2))
    batches = Batches(corpus, numbers, texts=8, anchors=5, seed=1)
    assert batches.per_epoch == 12
    seen = []
    for step in range(batches.per_epoch):
        batch = batches[step]
        for row in range(8):
            n = int((batch.ids[row] >= 0).sum())
            seen.append(tuple(batch.ids[row, :n].tolist()))
            prompt = n - 40
            assert (batch.anchors[row] >= prompt).all()
            assert (batch.anchors[row] <= n - 2).all()
    assert sorted(seen) == sorted(tuple(corpus[n].ids.tolist()) for n in numbers)
    assert torch.equal(batches[3].anchors, Batches(corpus, numbers, 8, 5, 1)[3].anchors)
    assert not torch.equal(batches[3].anchors, batches[3 + batches.per_epoch].anchors)


def test_openings_are_filled_in_and_repeatable():
    openings = draw_openings(300, seed=5)
    assert openings == draw_openings(300, seed=5)
    assert {o.domain for o in openings} == {"chat", "code", "math"}
    assert not any("{" in o.text for o in openings if o.complete)


def test_the_user_turn_is_what_the_template_puts_around_it(pair: ModelPair):
    assert user_turn(pair.tokenizer) == ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")


def test_held_out_prompts_are_known_by_their_words():
    """Jaccard index of the word sets: 5 of 5, 5 of 6 (0.83), 3 of 7 (0.43)."""
    held_out = HeldOut(["What is 17 times 24?"])
    assert held_out.contains("what is 24 times 17")
    assert held_out.contains("So what is 17 times 24?")
    assert not held_out.contains("What is 3 times 5?")


def test_loops_are_recognised():
    assert periodic([9, 8] + [1, 2, 3, 4, 5, 6] * 3)
    assert not periodic([9, 8] + [1, 2, 3, 4, 5, 6] * 2 + [1, 2, 3, 4, 5, 7])
    assert periodic([4] * 16)
    assert not periodic([4] * 8)  # a short run of one token is no loop yet


def test_conversations_are_the_turns_without_their_template(pair: ModelPair):
    """An answer that ended by itself stays whole; one that was cut off goes back to its last sentence."""
    template = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    rows = []
    for user, said in (("Hi", "Hello there.<|im_end|>"), ("Count", "One. Two. Thr"), ("Why", "x y z z")):
        prompt = pair.tokenizer(template.format(user)).input_ids
        rows.append((prompt + pair.tokenizer(said).input_ids, len(prompt), "chat"))
    talks = conversations(Texts(rows, "", ""), pair.tokenizer)
    assert talks == [("Hi", "Hello there."), ("Count", "One. Two.")]


def test_every_text_comes_once_an_epoch_among_its_neighbours():
    """20 texts in groups of 5: four steps cover all of them, and the next four group them otherwise."""
    epochs = [[like_length(step, 20, 5, seed=4) for step in range(4 * e, 4 * e + 4)] for e in range(2)]
    for groups in epochs:
        assert sorted(i for group in groups for i in group) == list(range(20))
        assert all((group[-1] - group[0]) % 20 == 4 for group in groups)
    assert sorted(map(min, epochs[0])) != sorted(map(min, epochs[1]))


@pytest.mark.smollm2
@pytest.mark.parametrize("name", ["smollm2-135m-texts.npz", "smollm2-135m-corpus.npz"])
def test_shipped_texts_hold_no_prompt_that_is_held_out(name: str, smollm2: ModelPair):
    """None of their user turns reads nearly like a prompt of `data/prompts/` or of `held-out.jsonl`."""
    texts, tokenizer = load_texts(data_dir() / "training" / name), smollm2.tokenizer
    held_out, (before, behind) = HeldOut(never_written()), user_turn(tokenizer)
    prompts = [str(tokenizer.decode(ids[:length])) for ids, length, _ in texts.rows]
    turns = [prompt.removeprefix(before).removesuffix(behind) for prompt in prompts]
    assert len(turns) > 2000
    assert sum(map(len, turns)) < sum(map(len, prompts))
    assert not [turn for turn in turns if held_out.contains(turn)]
    assert held_out.contains(never_written()[-1])
