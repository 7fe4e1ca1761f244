"""What each token adds to a text, byte by byte, as transformers' stop strings see it."""

import re
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
_BEFORE = "abcdef"  # a text before the token, so that a space at its start is kept


class Spelling:
    """The bytes of a tokenizer's tokens; special tokens are spelled too, and a token may be part of a letter.

    Source: `StopStringCriteria.clean_tokenizer_vocab` in transformers, which spells the whole vocabulary.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._tokenizer: Any = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        parts = "" if decoder is None else str(decoder.__getstate__())  # the decoder as JSON
        self._byte_fallback = '"ByteFallback"' in parts
        self._byte_level = '"ByteLevel"' in parts and not self._byte_fallback
        self._known: dict[int, bytes | None] = {}

    def __call__(self, token_id: int) -> bytes | None:
        """The token's bytes; None for an id without a token."""
        if token_id not in self._known:
            self._known[token_id] = self._spell(token_id)
        return self._known[token_id]

    def _spell(self, token_id: int) -> bytes | None:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:
            return None
        if self._byte_level and all(letter in _BYTES for letter in token):
            return bytes(_BYTES[letter] for letter in token)
        if self._byte_fallback and (byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)):
            return bytes.fromhex(byte[1])
        before = self._tokenizer(_BEFORE, add_special_tokens=False).input_ids
        text = self._join([*self._tokenizer.convert_ids_to_tokens(before), token])
        return (text.partition(_BEFORE)[2] if _BEFORE in text else self._join([token])).encode()

    def _join(self, tokens: list[str]) -> str:
        return self._tokenizer.convert_tokens_to_string(tokens)
