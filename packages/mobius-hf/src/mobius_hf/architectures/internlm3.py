"""InternLM 3. Source: `transformers` `LlamaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields


class InternLM3(Llama):
    """Llama with one more name for each flag of the biases, which have to agree."""

    model_type = "internlm3"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[Mapping[str, object]] = {}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama with the flags that the file itself has."""
        arguments = super().arguments(fields)
        stated = [fields.raw.get(name) for name in ("qkv_bias", "bias")]
        for name in ("qkv_bias", "bias"):
            fields.value(name)
        biases = {each for each in stated if each is not None} or {arguments["attention_bias"]}
        if len(biases) != 1:
            raise fields.unfit("qkv_bias", stated[0], "the value of bias")
        bias = biases.pop()
        return arguments | {
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": bias,
        }


ARCHITECTURE = InternLM3()
