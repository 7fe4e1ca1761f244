"""Which fields of a draft checkpoint's config.json may be there.

A field that brings no tensor can still change what the drafter computes, and a loader that passes over it
drafts something else without a word. So every field is one that the loader reads, one that is known to do
nothing at inference, or one whose value says that nothing is to be done; any other is refused by its name.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PreTrainedConfig


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


READ_OF_BODY = _names(
    """
    hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim
    vocab_size hidden_act rms_norm_eps attention_bias max_position_embeddings rope_parameters
    rope_scaling rope_theta partial_rotary_factor layer_types sliding_window use_sliding_window
    max_window_layers
    """
)
READ_OF_Z_LAB = _names(
    """
    dflash_config block_size num_target_layers mask_token_id target_layer_ids is_causal
    target_hidden_size draft_vocab_size
    """
)
READ_OF_DFLASH_CONFIG = _names(
    "block_size num_target_layers mask_token_id target_layer_ids is_causal causal causal_head"
)
READ_OF_SPECULATORS = _names(
    """
    speculators_model_type transformer_layer_config aux_hidden_state_layer_ids block_size
    mask_token_id num_target_layers target_hidden_size draft_vocab_size sliding_window_non_causal
    """
)
READ_OF_ROPE = _names(
    """
    rope_theta rope_type type factor original_max_position_embeddings attention_factor beta_fast
    beta_slow short_factor long_factor low_freq_factor high_freq_factor mscale mscale_all_dim
    truncate partial_rotary_factor mrope_section mrope_interleaved
    """
)
# Book-keeping, defaults of generation, and settings of training: nothing of it is computed with.
HARMLESS = frozenset(PreTrainedConfig().to_dict()) | _names(
    """
    torch_dtype torchscript use_bfloat16 tf_legacy_loss pruned_heads tie_word_embeddings
    tie_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention finetuning_task
    prefix task_specific_params tokenizer_class sep_token_id decoder_start_token_id bos_token_id
    eos_token_id pad_token_id max_length min_length do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty
    length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens auto_map name_or_path use_cache initializer_range attention_dropout
    hidden_dropout quantization_config num_anchors max_anchors loss_decay_gamma speculators_config
    speculators_version
    """
)
# Settings that change the result, and the values at which they do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_neox_style": (True,),
    "rope_is_neox_style": (True,),
    "rope_interleave": (False,),
    "rope_interleaved": (False,),
    "mlp_bias": (False,),
    "use_qk_norm": (True,),
    "attn_output_gate": (False,),
    "pretraining_tp": (1,),
    "attention_multiplier": (),
    "residual_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "input_embedding_scale": (1.0,),
    "output_multiplier": (1.0,),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "query_pre_attn_scalar": (),
    "projector_type": ("dflash",),
    "sample_from_anchor": (False,),
    "markov_rank": (0,),
    "enable_confidence_head": (False,),
    "selector_rank": (0,),
    "conv_kernel_size": (0, 1),
    "draft_shift": (0,),
}


def unknown_field(fields: Mapping[str, Any], read: Iterable[str]) -> str | None:
    """The first field, as "name = value", that is none of those `read` and not known to do nothing."""
    known = HARMLESS | frozenset(read)
    for name, value in fields.items():
        if name in known or value is None or value in NEUTRAL.get(name, ()):
            continue
        return f"{name} = {value!r}"
    return None
