"""Fields of `config.json` that never change what a decoder computes, by the reason why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_BOOKKEEPING = frozenset(
    {
        "architectures",
        "auto_map",
        "dtype",
        "finetuning_task",
        "is_llama_config",
        "max_sequence_length",  # beside max_position_embeddings in early llama conversions
        "model_type",
        "name_or_path",
        "tf_legacy_loss",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
    }
)

_TRAINING = frozenset(
    {
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "chunk_size_feed_forward",
        "embd_pdrop",
        "embedding_dropout",
        "gradient_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "initializer_range",
        "is_decoder",  # a causal model is one, whatever it says
        "pretraining_tp",  # sums the same products in slices
        "resid_pdrop",
        "residual_dropout",
        "torchscript",
        "use_bfloat16",
        "use_cache",
    }
)

_WHAT_A_CALL_RETURNS = frozenset({"output_attentions", "output_hidden_states", "return_dict"})

_HEADS_OF_OTHER_TASKS = frozenset(
    {
        "classifier_dropout",
        "id2label",
        "label2id",
        "n_special",
        "num_labels",
        "predict_special_tokens",
        "problem_type",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    }
)

_GENERATION = frozenset(
    {
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_implementation",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "pad_token_id",
        "prefix",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "unk_token_id",
    }
)

# Settings of other programs' runtimes. MLC-LLM's sink and window sizes describe how its own cache
# is evicted; transformers reads `sliding_window` alone.
_OTHER_RUNTIMES = frozenset(
    {
        "attention_sink_size",
        "context_window_size",
        "prefill_chunk_size",
        "sliding_window_size",
        "transformers.js_config",
    }
)

# Read when weights are loaded, not when the graph is built.
_WEIGHTS = frozenset({"quantization_config"})

# What every decoder is, and older versions of transformers wrote out.
NEUTRAL: Mapping[str, object] = MappingProxyType(
    {
        "add_cross_attention": False,
        "is_encoder_decoder": False,
        "pruned_heads": {},
        "tie_encoder_decoder": False,
    }
)

IRRELEVANT = (
    _BOOKKEEPING
    | _TRAINING
    | _WHAT_A_CALL_RETURNS
    | _HEADS_OF_OTHER_TASKS
    | _GENERATION
    | _OTHER_RUNTIMES
    | _WEIGHTS
)
