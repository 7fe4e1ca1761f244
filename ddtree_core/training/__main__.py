"""Make and measure drafters: `python -m ddtree_core.training drafter RECIPE --work FOLDER --out FOLDER`."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ddtree_core.models import load_target
from ddtree_core.models.checkpoints import load_drafter
from ddtree_core.models.drafter import DFlashModel
from ddtree_core.models.loading import stop_ids
from ddtree_core.training.archive import Texts, conversations, load_texts, texts_of
from ddtree_core.training.corpus import Corpus, answers
from ddtree_core.training.held_out import held_out_prompts, never_written
from ddtree_core.training.openings import DOMAINS
from ddtree_core.training.publish import save_drafter
from ddtree_core.training.recipe import Recipe, follow, load_recipe, make_corpus, prepare
from ddtree_core.training.small_target import (
    TargetPlan,
    hybrid_config,
    new_target,
    save_target,
    text_loss,
    train_target,
    train_tokenizer,
)
from ddtree_core.training.validate import Walked, tau, walk_texts

BUDGETS = (8, 16, 32, 64)


def measure(draft: DFlashModel, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[Walked]:
    """Acceptance of a finished drafter on the target's greedy answers to the held-out prompts."""
    texts = answers(
        target,
        tokenizer,
        held_out_prompts(),
        layer_ids=draft.layer_ids,
        stop_ids=stop_ids(target, tokenizer),
    )
    return walk_texts(draft, target, tqdm(texts, desc="held-out prompts", unit="text"), BUDGETS)


def table(walked: list[Walked]) -> dict[str, dict[str, float]]:
    """Tokens per round by method and domain, "all" for all of them together."""
    methods = list(dict.fromkeys(w.method for w in walked))
    return {
        method: {domain or "all": round(tau(walked, method, domain), 3) for domain in (*DOMAINS, None)}
        for method in methods
    }


def show(figures: dict[str, dict[str, float]]) -> None:
    """Print tokens per round, a method to a line."""
    print(f"{'tokens per round':18}" + "".join(f"{domain:>8}" for domain in (*DOMAINS, "all")))
    for method, row in figures.items():
        print(f"{method:18}" + "".join(f"{value:8.2f}" for value in row.values()))


def train(recipe: Recipe, work: Path, out: Path, every: int) -> None:
    """Corpus, training with validation every `every` steps, the drafter in `out`, and what it reaches."""
    target, tokenizer = load_target(recipe.target)
    corpus = make_corpus(
        recipe,
        target,
        tokenizer,
        work / "corpus",
        stop_ids=stop_ids(target, tokenizer),
        held_out=never_written(),
    )
    prepared = prepare(recipe, target, corpus)
    print(f"{len(corpus)} texts, {corpus.answer_tokens} answer tokens, {len(prepared.validation)} set aside")
    texts, seconds = [corpus[n] for n in prepared.validation[:24]], 0.0
    with tqdm(total=sum(plan.steps for plan in recipe.stages), desc="training", unit="step") as bar:
        for step in follow(recipe, prepared, target, work):
            seconds += step.seconds
            bar.update(step.number + 1 - bar.n)  # an interrupted run goes on where it was
            bar.set_postfix(loss=f"{step.loss:.3f}")
            if (step.number + 1) % every == 0:
                walked = walk_texts(prepared.model, target, texts, (16,), prepared.scale)
                chain, tree = tau(walked, "chain"), tau(walked, "tree 16")
                bar.write(
                    f"step {step.number + 1}: {chain:.3f} tokens per round (chain), {tree:.3f} (tree 16)"
                )
    save_drafter(prepared.model, prepared.scale, out)
    figures = table(measure(load_drafter(out, target), target, tokenizer))
    data: dict[str, Any] = {
        "recipe": asdict(recipe),
        "texts": len(corpus),
        "answer_tokens": corpus.answer_tokens,
        "training_seconds": round(seconds),
        "held_out": figures,
    }
    (out / "training.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    show(figures)


def train_small_target(texts: Path, writer: str, work: Path, out: Path, steps: int) -> None:
    """Save a small hybrid and its tokenizer, made of what `writer` wrote; print its loss on unseen texts."""
    author, tokenizer = load_target(writer)
    talks = conversations(load_texts(texts), tokenizer)
    own = train_tokenizer(text for talk in talks for text in talk)
    model = new_target(hybrid_config(own))
    plan = TargetPlan(steps=steps)
    with tqdm(total=steps, desc="training", unit="step") as bar:
        for step in train_target(model, own, talks, plan, folder=work):
            bar.update(step.number + 1 - bar.n)
            bar.set_postfix(loss=f"{step.loss:.3f}")
    save_target(model, own, out)
    said = answers(author, tokenizer, held_out_prompts(), layer_ids=(), stop_ids=stop_ids(author, tokenizer))
    rows = [(text.ids.tolist(), text.prompt_length, text.domain) for text in said]
    unseen = conversations(Texts(rows, "", ""), tokenizer)
    loss = text_loss(load_target(str(out))[0], own, unseen)
    print(
        f"{len(talks)} conversations; held out: {loss.nats_per_token:.3f} nats per token, "
        f"{loss.bits_per_byte:.3f} bits per byte"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddtree_core.training", description=__doc__)
    parser.add_argument("--threads", type=int, help="threads for torch (default: all cores)")
    commands = parser.add_subparsers(dest="command", required=True)
    drafter = commands.add_parser("drafter", help="write the corpus, train, save and measure a drafter")
    drafter.add_argument("recipe", type=Path, help="JSON; data/training holds those of the shipped drafters")
    drafter.add_argument("--work", type=Path, required=True, help="folder of corpus and state; found again")
    drafter.add_argument("--out", type=Path, required=True, help="folder for the finished drafter")
    drafter.add_argument("--validate-every", type=int, default=200, metavar="STEPS")
    measure = commands.add_parser("measure", help="measure a finished drafter on the held-out prompts")
    measure.add_argument("drafter", type=Path)
    measure.add_argument("--target", required=True, help="a registered pair's name, a folder or a hub id")
    target = commands.add_parser("target", help="train a small hybrid target from scratch")
    target.add_argument("texts", type=Path, help="texts that another target wrote, see the command texts")
    target.add_argument("--writer", required=True, help="that target: a pair's name, a folder or a hub id")
    target.add_argument("--work", type=Path, required=True, help="folder of the state; found again")
    target.add_argument("--out", type=Path, required=True, help="folder for the finished target")
    target.add_argument("--steps", type=int, default=1200)
    texts = commands.add_parser("texts", help="pack the texts of a corpus, without features, into one file")
    texts.add_argument("corpus", type=Path)
    texts.add_argument("--out", type=Path, required=True)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 1 with one sentence on stderr for whatever cannot be done."""
    args = _parser().parse_args(arguments)
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        if args.command == "drafter":
            train(load_recipe(args.recipe), args.work, args.out, args.validate_every)
        elif args.command == "target":
            train_small_target(args.texts, args.writer, args.work, args.out, args.steps)
        elif args.command == "measure":
            target, tokenizer = load_target(args.target)
            show(table(measure(load_drafter(args.drafter, target), target, tokenizer)))
        else:
            texts_of([Corpus(args.corpus)]).save(args.out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
