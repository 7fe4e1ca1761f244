"""Published shapes of the registry's targets: their config.json, as far as sizes depend on it.

They let a machine without a network say what a pair needs; a loaded pair has the shape of its own files.
"""

from typing import Any

Shape = dict[str, Any]


def _qwen3(**sizes: Any) -> Shape:
    return {"model_type": "qwen3", "vocab_size": 151936, "num_attention_heads": 32, "head_dim": 128} | sizes


def _hybrid(vision: Shape | None = None, **sizes: Any) -> Shape:
    """A Qwen3.5/3.6 config.json: a multimodal model whose language model, three Gated DeltaNet layers to one
    of full attention, stands under `text_config`.

    The vision tower is given where its shape was found; it is never loaded for decoding text.
    """
    kind = "qwen3_5_moe" if "num_experts" in sizes else "qwen3_5"
    text = {
        "model_type": f"{kind}_text",
        "vocab_size": 248320,
        "full_attention_interval": 4,
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
    }
    shape = {"model_type": kind, "text_config": text | sizes} | ({"vision_config": vision} if vision else {})
    return shape | {"tie_word_embeddings": shape["text_config"]["tie_word_embeddings"]}


SMOLLM2_135M: Shape = dict(
    model_type="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
HYBRID_4M: Shape = dict(
    model_type="qwen3_5_text",
    vocab_size=2048,
    hidden_size=192,
    intermediate_size=512,
    num_hidden_layers=8,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=64,
    linear_num_key_heads=3,
    linear_num_value_heads=3,
    linear_key_head_dim=48,
    linear_value_head_dim=64,
    tie_word_embeddings=True,
)
QWEN3_4B = _qwen3(
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_key_value_heads=8,
    tie_word_embeddings=True,
)
QWEN3_8B = _qwen3(
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_key_value_heads=8,
    tie_word_embeddings=False,
)
QWEN3_CODER_30B_A3B = _qwen3(
    model_type="qwen3_moe",
    hidden_size=2048,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    num_hidden_layers=48,
    num_key_value_heads=4,
    tie_word_embeddings=False,
)
QWEN35_4B = _hybrid(
    hidden_size=2560,
    intermediate_size=9216,
    num_hidden_layers=32,
    num_attention_heads=16,
    num_key_value_heads=4,
    linear_num_value_heads=32,
    tie_word_embeddings=True,
)
QWEN35_9B = _hybrid(
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=32,
    num_attention_heads=16,
    num_key_value_heads=4,
    linear_num_value_heads=32,
)
QWEN35_27B = _hybrid(  # Qwen3.6-27B as well
    dict(
        depth=27,
        hidden_size=1152,
        intermediate_size=4304,
        num_heads=16,
        num_position_embeddings=2304,
        out_hidden_size=5120,
    ),
    hidden_size=5120,
    intermediate_size=17408,
    num_hidden_layers=64,
    num_attention_heads=24,
    num_key_value_heads=4,
    linear_num_value_heads=48,
)
QWEN35_35B_A3B = _hybrid(  # Qwen3.6-35B-A3B as well
    hidden_size=2048,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    num_experts=256,
    num_experts_per_tok=8,
    num_hidden_layers=40,
    num_attention_heads=16,
    num_key_value_heads=2,
    linear_num_value_heads=32,
)
LLAMA31_8B: Shape = dict(
    model_type="llama",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    tie_word_embeddings=False,
)
GPT_OSS_20B: Shape = dict(
    model_type="gpt_oss",
    vocab_size=201088,
    hidden_size=2880,
    intermediate_size=2880,
    num_hidden_layers=24,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    num_local_experts=32,
    num_experts_per_tok=4,
    sliding_window=128,
    tie_word_embeddings=False,
)
