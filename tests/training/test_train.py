"""Training: it learns, it is repeatable, it can be interrupted, and it refuses what does not belong to it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddtree_core.decoding import generate
from ddtree_core.models import ModelPair
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.training.batches import Batches
from ddtree_core.training.corpus import Corpus
from ddtree_core.training.initialise import draft_config, feature_scale, new_drafter
from ddtree_core.training.objective import drafting_loss, position_weights
from ddtree_core.training.publish import save_drafter
from ddtree_core.training.recipe import Recipe, follow, prepare
from ddtree_core.training.train import DrafterPlan, train_drafter
from ddtree_core.training.validate import tau, walk_texts

PLAN = DrafterPlan(steps=12, texts=6, anchors=8, block_size=4, warmup=3)


def fresh(pair: ModelPair, corpus: Corpus) -> tuple[DFlashModel, torch.Tensor]:
    config = draft_config(
        pair.model, layer_ids=corpus.identity.layer_ids, block_size=4, mask_token_id=259, layers=1
    )
    scale = feature_scale(corpus, list(range(len(corpus))))
    return new_drafter(pair.model, config, scale), scale


def train(pair: ModelPair, corpus: Corpus, plan: DrafterPlan = PLAN, steps: int | None = None, folder=None):
    """Losses and weights of a training that is stopped after `steps` steps of this call."""
    model, scale = fresh(pair, corpus)
    batches = Batches(corpus, list(range(len(corpus))), plan.texts, plan.anchors, plan.seed)
    losses = []
    for step in train_drafter(model, pair.model, batches, scale, plan, folder=folder, save_every=5):
        losses.append(step.loss)
        if steps is not None and len(losses) == steps:
            break
    return losses, model.state_dict(), (model, scale)


def test_a_minute_sized_drafter_beats_chance(pair: ModelPair, corpus: Corpus, tmp_path: Path):
    """Chance is a token of 260, so a chain of chance drafts commits 1.004 tokens a round.

    The untrained drafter commits about that; the trained one must reach 1.3 on texts it has not seen, and
    exactly what its validation said when it is saved, loaded and decoded with.
    """
    plan = replace(PLAN, steps=80, learning_rate=5e-3, anchors=12, soft=0.0)
    model, scale = fresh(pair, corpus)
    unseen = [corpus[n] for n in range(0, len(corpus), 8)]
    before = tau(walk_texts(model, pair.model, unseen, (), scale), "chain")
    seen = [n for n in range(len(corpus)) if n % 8]
    batches = Batches(corpus, seen, plan.texts, plan.anchors, plan.seed)
    losses = [step.loss for step in train_drafter(model, pair.model, batches, scale, plan)]
    walked = walk_texts(model, pair.model, unseen, (8,), scale)
    assert before < 1.1
    assert tau(walked, "chain") > 1.3
    assert tau(walked, "tree 8") > tau(walked, "chain")
    assert losses[-1] < losses[0] - 1
    save_drafter(model, scale, tmp_path / "drafter", dtype=torch.float32)
    draft = load_drafter(tmp_path / "drafter", pair.model)
    assert tau(walk_texts(draft, pair.model, unseen, ()), "chain") == tau(walked, "chain")
    decoded = replace(pair, draft=draft)
    rounds = 0
    for text in unseen:
        prompt = text.ids[: text.prompt_length].tolist()
        made = generate(decoded, prompt, method="dflash", max_new_tokens=40, stop=())
        assert made.ids == text.ids[text.prompt_length :].tolist()  # greedy decoding stays lossless
        rounds += len(made.rounds)
    assert rounds == sum(w.rounds for w in walked if w.method == "chain")


def test_the_same_seed_gives_the_same_weights(pair: ModelPair, corpus: Corpus):
    losses, weights, _ = train(pair, corpus)
    again, same, _ = train(pair, corpus)
    assert losses == again
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_an_interrupted_training_ends_in_the_same_loss(pair: ModelPair, corpus: Corpus, tmp_path: Path):
    """Stopped after 7 of 12 steps, the state of step 5 is on disk; steps 5 … 11 are as if never stopped."""
    losses, weights, _ = train(pair, corpus)
    train(pair, corpus, steps=7, folder=tmp_path)
    resumed, same, _ = train(pair, corpus, folder=tmp_path)
    assert resumed == losses[5:]
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_a_state_of_another_plan_is_refused(pair: ModelPair, corpus: Corpus, tmp_path: Path):
    train(pair, corpus, folder=tmp_path)
    with pytest.raises(ValueError, match="with other learning_rate, seed; use the same plan"):
        train(pair, corpus, replace(PLAN, learning_rate=1.0, seed=4), folder=tmp_path)


def test_a_state_of_another_corpus_is_refused(pair: ModelPair, corpus: Corpus, tmp_path: Path):
    """Texts that were added after a training had begun would change which texts its steps draw."""
    train(pair, corpus, folder=tmp_path)
    model, scale = fresh(pair, corpus)
    fewer = Batches(corpus, list(range(len(corpus) - 1)), PLAN.texts, PLAN.anchors, PLAN.seed)
    with pytest.raises(ValueError, match="with other corpus_texts; use the same plan and corpus"):
        next(train_drafter(model, pair.model, fewer, scale, PLAN, folder=tmp_path))


def test_a_recipe_numbers_its_steps_through_the_stages(pair: ModelPair, corpus: Corpus, tmp_path: Path):
    """Stages of 4 and 3 steps are steps 0 to 6; a second run finds all of them done."""
    stages = (replace(PLAN, steps=4), replace(PLAN, steps=3, seed=1))
    recipe = Recipe("", corpus.identity.layer_ids, 259, stages, block_size=4, layers=1)
    numbers = [
        step.number for step in follow(recipe, prepare(recipe, pair.model, corpus), pair.model, tmp_path)
    ]
    assert numbers == [0, 1, 2, 3, 4, 5, 6]
    assert not list(follow(recipe, prepare(recipe, pair.model, corpus), pair.model, tmp_path))


def test_blocks_longer_than_the_drafters_are_refused(pair: ModelPair, corpus: Corpus):
    with pytest.raises(ValueError, match="trains blocks of 6, the drafter has 4 slots"):
        train(pair, corpus, replace(PLAN, block_size=6))


def test_the_rate_warms_up_holds_and_cools_down():
    plan = DrafterPlan(steps=100, warmup=10, cooldown=0.4, learning_rate=1.0)
    assert plan.rate(0) == pytest.approx(0.1)
    assert plan.rate(9) == plan.rate(59) == 1.0
    assert plan.rate(80) == pytest.approx(0.5)
    assert plan.rate(99) == pytest.approx(1 / 40)


def test_the_loss_is_the_cross_entropy_by_its_definition():
    """Two slots in float64, the second behind the text's end: only the first counts."""
    logits = torch.tensor([[[1.0, 2.0, 0.5], [9.0, -9.0, 0.0]]], dtype=torch.float64)
    target = torch.tensor([[[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]]], dtype=torch.float64)
    log_q = logits.log_softmax(-1)[0, 0]
    hard, soft = -log_q[2], -(target[0, 0] * log_q).sum()
    weights = position_weights(2, 3.0).double()
    loss = drafting_loss(logits, target, torch.tensor([[2, -2]]), weights, soft=0.7)
    assert float(loss) == pytest.approx(float(0.7 * soft + 0.3 * hard), abs=1e-12)
    # A token outside the drafter's vocabulary leaves the target's distribution alone to be learnt.
    loss = drafting_loss(logits, target, torch.tensor([[-1, -2]]), weights, soft=0.7)
    assert float(loss) == pytest.approx(float(soft), abs=1e-12)


def test_position_weights_fall_by_the_decay():
    weights = position_weights(3, 2.0)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert float(weights[1] / weights[0]) == pytest.approx(2.718281828**-0.5, rel=1e-6)
