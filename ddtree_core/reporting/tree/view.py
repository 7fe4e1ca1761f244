"""The live tree visualiser: step through the rounds of a generation in JupyterLab, with or without a kernel.

All rounds lie in the widget's own state and all interaction in its JavaScript, so that a saved notebook or a
live HTML export steps just as well. Where no widget can be shown at all, an SVG of one round stands in.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import anywidget
import traitlets

from ddtree_core.decoding.records import Generation, Round
from ddtree_core.reporting.tables.plain_text import printable
from ddtree_core.reporting.tree.picture import TokenText, round_name
from ddtree_core.reporting.tree.svg import tree_svg

_HERE = Path(__file__).parent


class TreeView(anywidget.AnyWidget):
    """Slider, buttons and arrow keys over the rounds of a generation: draft tree, text so far, facts.

    `token_text` gives the text of one token id, for instance `lambda token: tokenizer.decode([token])`
    (default: the id in brackets). `decode` gives the text of many and is needed only where a character may
    be split over several tokens; without it their texts are joined.
    The state grows by about 450 bytes per tree node: 30 kB per round at budget 64.

    Raises ValueError if there is no round, or `index` is not the index of one.
    """

    _esm = _HERE / "view.js"
    _css = _HERE / "view.css"

    rounds = traitlets.List(traitlets.Dict(), help="title, svg, text and facts of each round").tag(sync=True)
    lead = traitlets.Unicode("", help="generated text before the first round on show").tag(sync=True)
    index = traitlets.Int(0, help="the round on show, from 0").tag(sync=True)

    def __init__(
        self,
        generation_or_rounds: Generation | Sequence[Round],
        *,
        token_text: TokenText | None = None,
        decode: Callable[[list[int]], str] | None = None,
        index: int = 0,
    ) -> None:
        whole = generation_or_rounds if isinstance(generation_or_rounds, Generation) else None
        rounds = list(whole.rounds if whole else generation_or_rounds)  # pyright: ignore[reportArgumentType]
        if not rounds:
            raise ValueError("there is no round to show: a text that ends with its first token has none")
        token_text = token_text or (lambda token: f"[{token}]")
        decode = decode or (lambda tokens: "".join(map(token_text, tokens)))
        # The first token of a generation comes from its prefill and belongs to no round.
        first = whole.ids[: len(whole.ids) - sum(len(each.tokens) for each in rounds)] if whole else []
        lead, *texts = _texts([first, *(each.tokens for each in rounds)], decode)
        facts = _facts(rounds, whole.budget if whole else None)
        titles = [f"{round_name(each)} of {rounds[-1].index}" if each.index else "Prefill" for each in rounds]
        svgs = [
            tree_svg(each, token_text=token_text, title=title)
            for each, title in zip(rounds, titles, strict=True)
        ]
        states = [
            {"title": title, "svg": svg, "text": text, "facts": rows}
            for title, svg, text, rows in zip(titles, svgs, texts, facts, strict=True)
        ]
        longest = max(range(len(rounds)), key=lambda place: rounds[place].acceptance_length)
        title = f"{titles[longest]}, the longest acceptance" if len(rounds) > 1 else titles[0]
        self._still = tree_svg(rounds[longest], token_text=token_text, title=title)
        super().__init__(rounds=states, lead=lead, index=index)

    @traitlets.validate("index")
    def _check_index(self, proposal: traitlets.Bunch) -> int:
        if not 0 <= proposal["value"] < len(self.rounds):
            last = len(self.rounds) - 1
            raise ValueError(f"there is no round of index {proposal['value']}: expected 0 to {last}")
        return proposal["value"]

    def __repr__(self) -> str:
        return f"TreeView({len(self.rounds)} rounds)"

    def _repr_mimebundle_(self, **kwargs: object) -> tuple[dict, dict]:
        # The base class offers text and the widget view. Front ends take the richest they know: the SVG is
        # seen where widgets are not, in a static export or a viewer without JavaScript.
        bundle = super()._repr_mimebundle_(**kwargs)  # pyright: ignore[reportArgumentType]
        data, metadata = bundle if bundle is not None else ({"text/plain": repr(self)}, {})
        still = self.rounds[self.index]["svg"] if self.index else self._still
        return {**data, "image/svg+xml": still}, metadata


def _texts(batches: list[list[int]], decode: Callable[[list[int]], str]) -> list[str]:
    """Text that each batch of tokens adds; a character cut at its end goes to the batch that completes it."""
    tokens: list[int] = []
    texts, shown = [], 0
    for number, batch in enumerate(batches, start=1):
        tokens += batch
        text = printable(decode(tokens))
        if number < len(batches):
            text = text.rstrip("\ufffd")
        texts.append(text[shown:])
        shown = max(shown, len(text))
    return texts


def _facts(rounds: list[Round], budget: int | None) -> list[list[list[str]]]:
    """Name and value of each fact, round by round."""
    facts, lengths = [], []
    for each in rounds:
        length, nodes, committed = each.acceptance_length, len(each.tree) - 1, len(each.tokens)
        lengths += [length] if each.index else []  # the prefill verifies no draft
        cut = f", {committed} committed" if committed < length else ""
        of = f" of budget {budget}" if budget is not None else ""
        rows = [["acceptance length", f"{length}{cut}"], ["draft nodes", f"{nodes}{of}"]]
        if lengths:
            rows.append(["mean so far", f"{sum(lengths) / len(lengths):.2f} tokens per round"])
        if each.seconds:
            stages = ", ".join(f"{stage} {1000 * seconds:.1f}" for stage, seconds in each.seconds.items())
            rows.append(["time", f"{1000 * sum(each.seconds.values()):.1f} ms: {stages}"])
        facts.append(rows)
    return facts
