"""Other settings of a wiring: the one that a drafter was made for is found by what it brings."""

from dataclasses import replace

import torch

from ddtree_core.decoding import load_prompts
from ddtree_core.diagnosis.acceptance import inject
from ddtree_core.diagnosis.acceptance.scratch import Scratch
from ddtree_core.diagnosis.acceptance.settings import best_gains
from ddtree_core.diagnosis.acceptance.transcripts import record
from ddtree_core.diagnosis.acceptance.wired_draft import wired
from ddtree_core.models import ModelPair

PROMPTS = [prompt["messages"] for prompt in load_prompts(["math", "code", "chat"], 2)[1::2]]


def test_an_ignored_window_is_found(hybrid: ModelPair):
    """A drafter with windows of 16: not a trained one, so the texts are what it drafts itself.

    Its own greedy drafts are the most likely tokens under its own windows, and less likely without.
    """
    draft = wired(hybrid).rewired(windows=(16, 16, 16))
    transcripts = []
    for transcript in record(hybrid, PROMPTS, 24):
        context = draft.context(transcript.features(draft.layer_ids), 0)
        drafted = draft.at(context, transcript.ids, transcript.anchors, 1)[:, 0].argmax(-1)
        ids = torch.cat([transcript.ids[: transcript.prompt_length + 1], drafted])
        transcripts.append(replace(transcript, ids=ids))
    faulty = inject(replace(hybrid, draft=draft), "window ignored")
    best = max(best_gains(faulty, Scratch(wired(faulty), transcripts)), key=lambda gain: gain.nats)
    assert (best.cause, best.setting, best.clear) == ("sliding window", "window 16", True)
