"""Qwen3.5, dense, the text part. Source: `transformers` `Qwen3_5ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components import GatedDeltaConfig
from mobius_components.config import FULL_ATTENTION, GATED_DELTA
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.layer_kinds import read_layer_kinds
from mobius_hf.recurrent_transforms import Ungroup, query_and_gate
from mobius_hf.rope import read_rope
from mobius_hf.transforms import PlusOne, Transform
from mobius_hf.windows import Windows

# Of text alone, the three positions of a token are one, whatever rotates by which.
_POSITIONS_OF_IMAGES = ("mrope_section", "mrope_interleaved")


class Qwen35Text(DecoderArchitecture):
    """Gated delta rule in most layers, gated attention in every fourth."""

    model_type = "qwen3_5_text"
    partial_rotary = True
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "attention_bias": False,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    }
    # The gate of linear attention is silu; Qwen 3.6's files say so.
    fixed: ClassVar[Mapping[str, object]] = {"attn_output_gate": True, "output_gate_type": "swish"}
    # States are float32 in any case; further tokens at once are not predicted.
    irrelevant = frozenset(
        {
            "mamba_ssm_dtype",
            "mlp_only_layers",
            "mtp_num_hidden_layers",
            "mtp_use_dedicated_embeddings",
        }
    )
    left_out = (*DecoderArchitecture.left_out, r"^mtp\.", r"^model\.visual\.")
    renames = ((r"^model\.language_model\.", "model."), *DecoderArchitecture.renames)
    transforms: ClassVar[tuple[Transform, ...]] = (
        PlusOne(
            r"model\.norm\.weight"
            r"|.*\.(?:input_layernorm|post_attention_layernorm|q_norm|k_norm)\.weight"
        ),
        Ungroup(
            r"(.*\.self_attn)\.q_proj\.(weight|bias)",
            (r"\1.q_proj.\2", r"\1.gate_proj.\2"),
            ((0,), (1,)),
            query_and_gate,
        ),
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and the type of each layer."""
        kinds = {"full_attention": FULL_ATTENTION, "linear_attention": GATED_DELTA}
        stated = read_layer_kinds(fields, kinds, "layer_types")
        interval = fields.optional_integer("full_attention_interval")
        if stated is None:
            if interval is None or interval < 1:
                raise fields.unfit("full_attention_interval", interval, "an integer of at least 1")
            layers = range(1, fields.integer("num_hidden_layers") + 1)
            stated = tuple(GATED_DELTA if n % interval else FULL_ATTENTION for n in layers)
        return Windows(None, stated)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of text."""
        rope = read_rope(fields, {FULL_ATTENTION}, _POSITIONS_OF_IMAGES)
        return {
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "partial_rotary_factor": rope.partial_rotary_factor,
        }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, those of attention and of the delta rule."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "qk_norm": "head",
            "attention_gate": True,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
            "gated_delta": GatedDeltaConfig(
                key_heads=fields.integer("linear_num_key_heads"),
                value_heads=fields.integer("linear_num_value_heads"),
                key_size=fields.integer("linear_key_head_dim"),
                value_size=fields.integer("linear_value_head_dim"),
                conv_taps=fields.integer("linear_conv_kernel_dim"),
                activation=fields.text("hidden_act"),
            ),
        }


ARCHITECTURE = Qwen35Text()
