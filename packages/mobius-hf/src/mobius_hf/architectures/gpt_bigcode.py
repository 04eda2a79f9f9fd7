"""SantaCoder and StarCoder 1. Source: `transformers` `GPTBigCodeForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.gpt2 import GPT2
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import SplitGroups


class GPTBigCode(GPT2):
    """GPT-2 with one key and value head, and matrices stored `[out, in]`."""

    model_type = "gpt_bigcode"
    defaults: ClassVar[Mapping[str, Any]] = {
        **GPT2.defaults,
        "activation_function": "gelu_pytorch_tanh",
        "multi_query": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {
        "add_cross_attention": False,
        "scale_attn_weights": True,
    }
    # How far half-precision scores are computed in float32: further here than any of them.
    irrelevant = frozenset(
        {
            "attention_softmax_in_fp32",
            "inference_runner",
            "max_batch_size",
            "max_sequence_length",
            "n_ctx",
            "pad_key_length",
            "pre_allocate_kv_cache",
            "runner_max_sequence_length",
            "scale_attention_softmax_in_fp32",
            "validate_runner_input",
        }
    )
    # With several key heads, a head's query, key and value lie together.
    transforms = (
        SplitGroups(
            r"(.*\.self_attn)\.c_attn\.(.*)",
            (r"\1.q_proj.\2", r"\1.k_proj.\2", r"\1.v_proj.\2"),
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of GPT-2 and the number of key and value heads."""
        # It follows from multi_query, whatever a file says.
        fields.value("num_key_value_heads")
        arguments = super().arguments(fields)
        heads = 1 if fields.flag("multi_query") else arguments["num_attention_heads"]
        return arguments | {"num_key_value_heads": heads}


ARCHITECTURE = GPTBigCode()
