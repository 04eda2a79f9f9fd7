"""EXAONE 3. Source: `transformers` `LlamaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mobius_components import ArchitectureConfig
from mobius_hf.architectures.llama import Llama

_LAYER = r"^transformer\.h\.(\d+)"


class Exaone(Llama):
    """Llama under names of its own, in the file as in the checkpoint."""

    model_type = "exaone"
    required = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[Mapping[str, object]] = {}
    irrelevant = frozenset({"embed_dropout"})
    left_out = (r"\.rotary\.inv_freq$", *Llama.left_out)
    renames = (
        (_LAYER + r"\.attn\.attention\.out_proj\.", r"model.layers.\1.self_attn.o_proj."),
        (_LAYER + r"\.attn\.attention\.", r"model.layers.\1.self_attn."),
        (_LAYER + r"\.ln_1\.", r"model.layers.\1.input_layernorm."),
        (_LAYER + r"\.ln_2\.", r"model.layers.\1.post_attention_layernorm."),
        (_LAYER + r"\.mlp\.c_fc_0\.", r"model.layers.\1.mlp.gate_proj."),
        (_LAYER + r"\.mlp\.c_fc_1\.", r"model.layers.\1.mlp.up_proj."),
        (_LAYER + r"\.mlp\.c_proj\.", r"model.layers.\1.mlp.down_proj."),
        (r"^transformer\.wte\.", "model.embed_tokens."),
        (r"^transformer\.ln_f\.", "model.norm."),
        *Llama.renames,
    )

    def to_config(
        self, raw: Mapping[str, Any], path: Path, *, through_transformers: bool = True
    ) -> ArchitectureConfig:
        """Return the architecture that the config describes, read under Llama's names."""
        names = {
            "num_layers": "num_hidden_layers",
            "layer_norm_epsilon": "rms_norm_eps",
            "activation_function": "hidden_act",
        }
        renamed = {names.get(name, name): value for name, value in raw.items()}
        return super().to_config(renamed, path, through_transformers=through_transformers)


ARCHITECTURE = Exaone()
