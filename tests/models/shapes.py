"""One small shape for targets of many kinds: four blocks of 64 channels that predict sharply."""

from typing import Any

SHAPE: dict[str, Any] = dict(
    vocab_size=260,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.3,
    tie_word_embeddings=False,
    bos_token_id=256,
    eos_token_id=258,
    pad_token_id=258,
)
