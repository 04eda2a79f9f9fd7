"""Hunyuan, dense. Source: `transformers` `HunYuanDenseV1ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.config import ConfigFields
from mobius_hf.rope import rope_object, rope_theta
from mobius_hf.windows import Windows


class HunYuanDenseV1(DecoderArchitecture):
    """Queries and keys are normalised after they rotate; `alpha` stretches the rotary base."""

    model_type = "hunyuan_v1_dense"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DecoderArchitecture.defaults,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
    }
    fixed: ClassVar[Mapping[str, object]] = {
        "add_classification_head": False,
        "mlp_bias": False,
        "norm_type": "rms",
        "position_embedding_xdrope": False,
        "use_cla": False,
        "use_mla": False,
        "use_qk_norm": True,
        "use_rotary_pos_emb": True,
        "vit_type": None,
    }
    # Published files carry what Tencent's other models read: a head that classifies, image parts.
    irrelevant = frozenset(
        {
            "anyres_pooling_size",
            "anyres_vit_max_image_size",
            "anyres_vit_two_views",
            "cla_share_factor",
            "class_num",
            "dense_list",
            "eod_token_id",
            "im_end_id",
            "im_newline_id",
            "im_start_id",
            "image_token_id",
            "mask_init_id",
            "num_media_embeds",
            "org_vocab_size",
            "pad_id",
            "pool_type",
            "skip_cls_token",
            "text_end_id",
            "text_start_id",
            "video_end_id",
            "video_start_id",
            "vit_add_patchemb_bias",
            "vit_input_resolution",
            "vit_mapping_type",
            "vit_norm_type",
            "vit_patch",
            "vit_path",
            "vit_remove_prenorm",
            "vit_token",
            "vit_used_rms_norm",
        }
    )
    renames = (
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.query_layernorm\.", r"model.\1.q_norm."),
        (r"^(?:model\.)?(layers\.\d+\.self_attn)\.key_layernorm\.", r"model.\1.k_norm."),
        *DecoderArchitecture.renames,
    )

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding; with `alpha`, nothing else of the scaling counts.

        Source: `transformers` `HunYuanMoEV1RotaryEmbedding.compute_ntk_alpha_rope_parameters`.
        """
        name, parameters = rope_object(fields)
        alpha = parameters.get("alpha")
        kind = parameters.get("rope_type", parameters.get("type"))
        if not alpha or kind != "dynamic":
            return super().rotary(fields, windows)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or alpha <= 0:
            raise fields.unfit(f"{name}.alpha", alpha, "a number above zero")
        size = _head_size(fields)
        if size < 4 or size % 2:
            raise fields.unfit("head_dim", size, "an even number of at least 4")
        return {"rope_theta": rope_theta(fields, name, parameters) * alpha ** (size / (size - 2))}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the shared arguments, the norms and the biases."""
        attention_bias = fields.flag("attention_bias")
        return super().arguments(fields) | {
            "head_dim": _head_size(fields),
            "qk_norm": "head",
            "qk_norm_after_rotary": True,
            "attention_bias": attention_bias,
            "attention_output_bias": attention_bias,
        }


def _head_size(fields: ConfigFields) -> int:
    """Return the width of a head, which older files call `attention_head_dim`.

    Raises:
        CheckpointConfigError: if the file has both and they differ.
    """
    size, older = (fields.optional_integer(name) for name in ("head_dim", "attention_head_dim"))
    if size is not None and older not in (None, size):
        raise fields.unfit("attention_head_dim", older, f"head_dim, which is {size}")
    return size or older or fields.integer("hidden_size") // fields.integer("num_attention_heads")


ARCHITECTURE = HunYuanDenseV1()
