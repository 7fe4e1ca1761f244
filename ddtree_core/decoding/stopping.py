"""Where a text ends: a stop token, a stop string or the token limit, wherever in a round it falls."""

from collections.abc import Iterable, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from ddtree_core.decoding.arguments import is_text, shown, whole_number
from ddtree_core.decoding.sampling import check_defined
from ddtree_core.decoding.spelling import Spelling

Stop = int | str | Sequence[int | str]


class Stopper:
    """Takes each round's tokens and cuts them where plain autoregressive decoding would have stopped.

    A stop token is kept in `ids` and ends the text. A stop string ends it with the token that completes it,
    as in `generate(stop_strings=…)`: special tokens count as they are spelled, and the string may begin in
    the prompt. `reason` is None while the text goes on, then "stop" or "length".
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: Sequence[int],
        stop_strings: Sequence[str],
        max_new_tokens: int,
        prompt_ids: Sequence[int] = (),
    ):
        self.ids: list[int] = []
        self.reason: str | None = None
        self._tokenizer, self._limit = tokenizer, max_new_tokens
        self._stop_ids, self._strings = frozenset(stop_ids), [string.encode() for string in stop_strings]
        self._longest = max(map(len, self._strings), default=0)
        self._found = 0  # bytes from where a completed stop string begins to the end of the newest token
        self._tail = b""  # what the newest tokens spell, as far back as a stop string may reach
        if self._strings:
            self._spelling = Spelling(tokenizer)
            for token in prompt_ids[-self._longest :]:
                self._read(token)
            self._found = 0  # a stop string that ends in the prompt does not count

    @classmethod
    def parse(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        stop: Stop | None,
        end_ids: Sequence[int],
        max_new_tokens: int,
        prompt_ids: Sequence[int] = (),
    ) -> "Stopper":
        """A stopper for the stops that a user gives and the model's own end tokens.

        Raises `ValueError` for a stop that is neither a token id nor text, and for an empty string.
        """
        ids, strings = list(end_ids), []
        for item in _items(stop):
            if (token := whole_number(item)) is not None:
                ids.append(token)
            elif not is_text(item):
                raise ValueError(f"stop holds {shown(item)}, expected token ids and strings")
            elif item == "":
                raise ValueError("a stop string is empty; expected text, or leave it out")
            else:
                strings.append(item)
        return cls(tokenizer, ids, strings, max_new_tokens, prompt_ids)

    def take(self, tokens: list[int]) -> list[int]:
        """Append the tokens up to the stop, and return those that were kept.

        Raises `ValueError` where the text goes on and the target's logits named no token.
        """
        start = len(self.ids)
        for token in tokens:
            check_defined(token)
            self.ids.append(token)
            if self._strings:
                self._read(token)
            if token in self._stop_ids or self._found:
                self.reason = "stop"
            elif len(self.ids) == self._limit:
                self.reason = "length"
            if self.reason:
                break
        return self.ids[start:]

    def text(self) -> str:
        """The generated text, without special tokens and the stop token or stop string that ended it."""
        if not self._found:
            ended = bool(self.ids) and self.ids[-1] in self._stop_ids
            return self._decode(len(self.ids) - ended)
        last, excess = len(self.ids), self._found  # back to the token in which the stop string begins
        while last and excess > 0:
            last -= 1
            excess -= len(self._spelling(self.ids[last]) or b"")
        before, whole = self._decode(last), self._decode(last + 1)
        if excess >= 0 or whole == before:  # it begins with the token, in the prompt, or in a hidden token
            return before
        cut = (self._spelling(self.ids[last]) or b"")[-excess:].decode(errors="replace")
        return whole[: len(whole) - len(cut)]

    def _decode(self, n: int) -> str:
        return str(self._tokenizer.decode(self.ids[:n], skip_special_tokens=True))

    def _read(self, token: int) -> None:
        """Spell one more token, and see whether a stop string ends in it."""
        spelled = self._spelling(token)
        if spelled is None:  # no text goes through an id without a token
            self._tail = b""
            return
        text = self._tail + spelled
        first = len(self._tail) + 1  # the least end of a string that ends in this token
        starts = [text.find(string, max(0, first - len(string))) for string in self._strings]
        begin = min((start for start in starts if start >= 0), default=len(text))
        self._found, self._tail = len(text) - begin, text[-self._longest :]


def _items(stop: object) -> list[object]:
    if stop is None:
        return []
    if isinstance(stop, str) or whole_number(stop) is not None:
        return [stop]
    if (
        isinstance(stop, Iterable)
        and not isinstance(stop, (bytes, bytearray, Mapping))
        and getattr(stop, "ndim", 1)
    ):
        return list(stop)
    raise ValueError(f"stop is {shown(stop)}, expected a token id, a string, or several of them")
