"""The command makes a drafter from a recipe, says what it reaches, and goes on where it was interrupted."""

import json
from pathlib import Path

import pytest

from ddtree_core.models import load_pair, load_target
from ddtree_core.models.loading import stop_ids
from ddtree_core.training import __main__ as command
from ddtree_core.training import held_out
from ddtree_core.training import recipe as recipe_module
from ddtree_core.training.archive import Texts, load_texts
from ddtree_core.training.corpus import answers
from ddtree_core.training.identity import identity

TARGET = "data/models/hybrid-4m"
STAGE = {"texts": 4, "anchors": 6, "block_size": 4, "warmup": 2}
RECIPE = {
    "target": TARGET,
    "layer_ids": [1, 7],
    "mask_token_id": 2,
    "layers": 1,
    "block_size": 4,
    "texts": "small.npz",
    "stages": [STAGE | {"steps": 4}, STAGE | {"steps": 3, "seed": 1}],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own: the shipped target's answers to 30 sums, and two held-out prompts."""
    model, tokenizer = load_target(TARGET)
    texts = answers(
        model,
        tokenizer,
        [("math", f"What is {n} + {n + 1}?") for n in range(30)],
        layer_ids=(),
        stop_ids=stop_ids(model, tokenizer),
        max_new_tokens=16,
    )
    made_with = identity(model, tokenizer, ())
    (tmp_path / "training").mkdir()
    rows = [(text.ids.tolist(), text.prompt_length, text.domain) for text in texts]
    Texts(rows, made_with.target, made_with.tokenizer).save(tmp_path / "training" / "small.npz")
    (tmp_path / "recipe.json").write_text(json.dumps(RECIPE))
    prompts = [{"id": f"h{n}", "domain": "chat", "prompt": text} for n, text in enumerate(("Hi", "Who?"))]
    (tmp_path / "training" / "held-out.jsonl").write_text("\n".join(json.dumps(row) for row in prompts))
    monkeypatch.setattr(recipe_module, "data_dir", lambda: tmp_path)
    monkeypatch.setattr(held_out, "data_dir", lambda: tmp_path)
    return tmp_path


def run(folder: Path, out: str) -> int:
    arguments = ["drafter", str(folder / "recipe.json"), "--work", str(folder / "work"), "--out", out]
    return command.main(["--threads", "1", *arguments])


def test_a_recipe_becomes_a_drafter_that_decodes(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run(folder, str(folder / "drafter")) == 0
    report = json.loads((folder / "drafter" / "training.json").read_text())
    assert report["texts"] == len(load_texts(folder / "training" / "small.npz").rows) == 30
    assert list(report["held_out"]) == ["chain", "tree 8", "tree 16", "tree 32", "tree 64"]
    assert f"{report['held_out']['chain']['all']:.2f}" in capsys.readouterr().out
    pair = load_pair((TARGET, str(folder / "drafter")))
    assert pair.draft.layer_ids == (1, 7)
    # Everything is done: the second run trains no step and writes the same weights.
    weights = (folder / "drafter" / "model.safetensors").read_bytes()
    assert run(folder, str(folder / "again")) == 0
    assert (folder / "again" / "model.safetensors").read_bytes() == weights
    assert json.loads((folder / "again" / "training.json").read_text())["training_seconds"] == 0


def test_what_is_no_recipe_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "recipe.json").write_text('{"steps": 3}')
    assert run(tmp_path, str(tmp_path / "out")) == 1
    assert "is not a recipe" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
