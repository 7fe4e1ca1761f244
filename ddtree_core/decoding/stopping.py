"""Where a text ends: a stop token, a stop string or the token limit, wherever in a round it falls."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from transformers import PreTrainedTokenizerBase

from ddtree_core.decoding.sampling import check_defined

Stop = int | str | Sequence[int | str]


class Stopper:
    """Takes each round's tokens and cuts them where plain autoregressive decoding would have stopped.

    A stop token is kept in `ids` and ends the text; a stop string ends it with the token that completes it in
    the generated text. `reason` is None while the text goes on, then "stop" or "length".
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop_ids: Sequence[int],
        stop_strings: Sequence[str],
        max_new_tokens: int,
    ):
        self.ids: list[int] = []
        self.reason: str | None = None
        self._tokenizer = tokenizer
        self._stop_ids, self._stop_strings = frozenset(stop_ids), tuple(stop_strings)
        self._limit = max_new_tokens

    @classmethod
    def parse(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        stop: Stop | None,
        end_ids: Sequence[int],
        max_new_tokens: int,
    ) -> "Stopper":
        """A stopper for the stops that a user gives and the model's own end tokens.

        Raises `ValueError` for a stop that is neither a token id nor text, and for an empty string.
        """
        given = [] if stop is None else [stop] if isinstance(stop, (int, str)) else list(stop)
        for item in given:
            if not isinstance(item, (Integral, str)):
                raise ValueError(f"stop holds {item!r}, expected token ids and strings")
            if item == "":
                raise ValueError("a stop string is empty; expected text, or leave it out")
        ids = [int(item) for item in given if isinstance(item, Integral)]
        strings = [item for item in given if isinstance(item, str)]
        # Special tokens do not show in the text, so one that is named as a stop string goes by its id.
        vocabulary: Any = tokenizer
        special: dict[str, int] = vocabulary.get_added_vocab()
        ids += [special[string] for string in strings if string in special]
        return cls(tokenizer, (*end_ids, *ids), strings, max_new_tokens)

    def take(self, tokens: list[int]) -> list[int]:
        """Append the tokens up to the stop, and return those that were kept.

        Raises `ValueError` where the text goes on and the target's logits named no token.
        """
        start = len(self.ids)
        for token in tokens:
            check_defined(token)
            self.ids.append(token)
            if token in self._stop_ids or (self._stop_strings and self._found() is not None):
                self.reason = "stop"
            elif len(self.ids) == self._limit:
                self.reason = "length"
            if self.reason:
                break
        return self.ids[start:]

    def text(self) -> str:
        """The generated text, without the stop token or stop string that ended it."""
        kept = self.ids[:-1] if self.ids and self.ids[-1] in self._stop_ids else self.ids
        text = str(self._tokenizer.decode(kept, skip_special_tokens=True))
        found = self._found() if self._stop_strings else None
        return text if found is None else text[:found]

    def _found(self) -> int | None:
        text = str(self._tokenizer.decode(self.ids, skip_special_tokens=True))
        places = [text.find(string) for string in self._stop_strings if string in text]
        return min(places, default=None)
