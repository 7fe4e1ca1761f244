"""Tiny Qwen3.5/3.6 targets in the published layout, field by field and tensor by tensor.

Written from the published index files alone, sharing no code with the library: the multimodal wrapper's
config, its language model under `model.language_model.`, vision tower, multi-token prediction layer, shards
with an index, all weights in bfloat16. Numbers of layers of each kind in a row are the published ones; all
sizes are scaled down.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddtree_core.models.tiny import byte_tokenizer
from tests.models.draft_files import write_checkpoint

LAYERS, HIDDEN, MLP = 8, 64, 96
VOCAB = 264  # padded: the tokenizer has 261 tokens
HEADS, KV_HEADS, DIM = 4, 2, 16  # of full attention
KEY_HEADS, VALUE_HEADS, LINEAR_DIM, KERNEL = 2, 4, 8, 4  # of Gated DeltaNet
EXPERTS, EXPERT = 4, 24
VISION, VISION_MLP, PATCH, POSITIONS, BLOCKS = 32, 48, 4, 16, 2
KINDS = (["linear_attention"] * 3 + ["full_attention"]) * (LAYERS // 4)
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)
Shapes = dict[str, tuple[int, ...]]


def text_config(moe: bool = False) -> dict[str, Any]:
    """The `text_config` of the wrapper, or the config.json of a text-only checkpoint."""
    sizes: dict[str, Any] = {"intermediate_size": MLP, "mlp_only_layers": []}
    if moe:
        sizes = {
            "moe_intermediate_size": EXPERT,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            "shared_expert_intermediate_size": EXPERT,
        }
    return sizes | {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": 258,
        "full_attention_interval": 4,
        "head_dim": DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "initializer_range": 0.02,
        "layer_types": KINDS,
        "linear_conv_kernel_dim": KERNEL,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_value_head_dim": LINEAR_DIM,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS,
        "pad_token_id": None,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [1, 1, 0],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": VOCAB,
    }


def wrapper_config(moe: bool = False) -> dict[str, Any]:
    """The config.json of the multimodal checkpoint; its vision config carries the wrapper's model type."""
    kind = "qwen3_5_moe" if moe else "qwen3_5"
    return {
        "architectures": [f"Qwen3_5{'Moe' if moe else ''}ForConditionalGeneration"],
        "image_token_id": 248056,
        "model_type": kind,
        "text_config": text_config(moe),
        "tie_word_embeddings": False,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": 248057,
        "vision_config": {
            "deepstack_visual_indexes": [],
            "depth": BLOCKS,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": VISION,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": VISION_MLP,
            "model_type": kind,
            "num_heads": 2,
            "num_position_embeddings": POSITIONS,
            "out_hidden_size": HIDDEN,
            "patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": 248054,
        "vision_start_token_id": 248053,
    }


def text_shapes(moe: bool = False) -> Shapes:
    """Tensors of the language model, named as below `model.language_model.`."""
    shapes: Shapes = {"embed_tokens.weight": (VOCAB, HIDDEN), "norm.weight": (HIDDEN,)}
    for i, kind in enumerate(KINDS):
        shapes |= _below(f"layers.{i}.", _block(kind, moe))
    return shapes


def _block(kind: str, moe: bool) -> Shapes:
    shapes: Shapes = {"input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,)}
    keys, values = KEY_HEADS * LINEAR_DIM, VALUE_HEADS * LINEAR_DIM
    if kind == "linear_attention":
        linear: Shapes = {
            "A_log": (VALUE_HEADS,),
            "conv1d.weight": (2 * keys + values, 1, KERNEL),
            "dt_bias": (VALUE_HEADS,),
            "in_proj_a.weight": (VALUE_HEADS, HIDDEN),
            "in_proj_b.weight": (VALUE_HEADS, HIDDEN),
            "in_proj_qkv.weight": (2 * keys + values, HIDDEN),
            "in_proj_z.weight": (values, HIDDEN),
            "norm.weight": (LINEAR_DIM,),
            "out_proj.weight": (HIDDEN, values),
        }
        shapes |= _below("linear_attn.", linear)
    else:
        attention: Shapes = {
            "q_proj.weight": (2 * HEADS * DIM, HIDDEN),  # queries and the output gate
            "k_proj.weight": (KV_HEADS * DIM, HIDDEN),
            "v_proj.weight": (KV_HEADS * DIM, HIDDEN),
            "o_proj.weight": (HIDDEN, HEADS * DIM),
            "q_norm.weight": (DIM,),
            "k_norm.weight": (DIM,),
        }
        shapes |= _below("self_attn.", attention)
    if not moe:
        return shapes | _below("mlp.", _mlp(MLP))
    experts: Shapes = {
        "gate.weight": (EXPERTS, HIDDEN),
        "experts.gate_up_proj": (EXPERTS, 2 * EXPERT, HIDDEN),
        "experts.down_proj": (EXPERTS, HIDDEN, EXPERT),
        "shared_expert_gate.weight": (1, HIDDEN),
    }
    return shapes | _below("mlp.", experts | _below("shared_expert.", _mlp(EXPERT)))


def _mlp(width: int) -> Shapes:
    wide, back = (width, HIDDEN), (HIDDEN, width)
    return {"gate_proj.weight": wide, "up_proj.weight": wide, "down_proj.weight": back}


def _unloaded_shapes(moe: bool) -> Shapes:
    """The vision tower and the multi-token prediction layer, which decoding text does not need."""
    mixed = 4 * VISION  # 2 × 2 patches are merged
    shapes: Shapes = {
        "model.visual.patch_embed.proj.weight": (VISION, 3, 2, PATCH, PATCH),
        "model.visual.patch_embed.proj.bias": (VISION,),
        "model.visual.pos_embed.weight": (POSITIONS, VISION),
        **_below("model.visual.merger.norm.", _affine(VISION)),
        **_below("model.visual.merger.linear_fc1.", _affine(mixed, mixed)),
        **_below("model.visual.merger.linear_fc2.", _affine(HIDDEN, mixed)),
        "mtp.fc.weight": (HIDDEN, 2 * HIDDEN),
        "mtp.norm.weight": (HIDDEN,),
        "mtp.pre_fc_norm_embedding.weight": (HIDDEN,),
        "mtp.pre_fc_norm_hidden.weight": (HIDDEN,),
        **_below("mtp.layers.0.", _block("full_attention", moe)),
    }
    for i in range(BLOCKS):
        block = {
            **_below("norm1.", _affine(VISION)),
            **_below("norm2.", _affine(VISION)),
            **_below("attn.qkv.", _affine(3 * VISION, VISION)),
            **_below("attn.proj.", _affine(VISION, VISION)),
            **_below("mlp.linear_fc1.", _affine(VISION_MLP, VISION)),
            **_below("mlp.linear_fc2.", _affine(VISION, VISION_MLP)),
        }
        shapes |= _below(f"model.visual.blocks.{i}.", block)
    return shapes


def _affine(*weight: int) -> Shapes:
    return {"weight": weight, "bias": weight[:1]}


def _below(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def wrapper_tensors(moe: bool = False) -> dict[str, Tensor]:
    """All tensors of the multimodal checkpoint, as random bfloat16 weights from a seed."""
    text = _below("model.language_model.", text_shapes(moe)) | {"lm_head.weight": (VOCAB, HIDDEN)}
    generator = torch.Generator().manual_seed(0)
    shapes = text | _unloaded_shapes(moe)
    drawn = {name: 0.1 * torch.randn(shapes[name], generator=generator) for name in sorted(shapes)}
    # The scale of this norm is stored as it is, those of the others less one.
    return {n: (1 + t if n.endswith("linear_attn.norm.weight") else t).bfloat16() for n, t in drawn.items()}


def text_tensors(moe: bool = False) -> dict[str, Tensor]:
    """The same language model as a text-only checkpoint names its tensors."""
    kept = {name: tensor for name, tensor in wrapper_tensors(moe).items() if "visual" not in name}
    return {name.replace("language_model.", ""): t for name, t in kept.items() if not name.startswith("mtp.")}


def write_target(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int = 5) -> Path:
    """Write a target with its tokenizer, whose chat template thinks unless told not to."""
    write_checkpoint(folder, config, tensors, shards)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = THINKING_TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [258, 256], "pad_token_id": 258}')
    return folder
