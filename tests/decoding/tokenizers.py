"""Small tokenizers of the kinds that real models have, beside the byte-level one of the tiny pairs."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def sentencepiece() -> PreTrainedTokenizerFast:
    """Spaces as ▁ and a byte for each letter that has no token."""
    pieces = ["▁", *"abcdef", "ab", "▁a", "▁b", "▁▁", "bc", "é", "☕", "abcdef", "▁abcdef", "c▁"]
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    tokenizer.add_special_tokens(["<s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


def wordpiece() -> PreTrainedTokenizerFast:
    """Whole words, and pieces that go on with one."""
    words = ["a", "b", "ab", "abcdef", "s", "é", ".", "'"]
    tokens = ["[UNK]", "[CLS]", "[SEP]", *words, "##a", "##b", "##ab", "##é"]
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
