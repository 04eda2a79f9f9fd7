"""Command R7B, Command A. Source: `transformers` `Cohere2ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import SLIDING_ATTENTION
from mobius_hf.architectures.cohere import Cohere
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, by_layer_types


class Cohere2(Cohere):
    """Command R, most of whose layers slide; only those rotate."""

    model_type = "cohere2"
    defaults: ClassVar[Mapping[str, Any]] = {**Cohere.defaults, "sliding_window": 4096}
    # Older files say so what transformers takes for granted.
    fixed: ClassVar[Mapping[str, object]] = {
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": False,
        "use_qk_norm": False,
    }
    # The layer types say what the pattern would; the rest is how a program keeps its cache, and
    # another name of tie_word_embeddings.
    irrelevant = frozenset(
        {"cache_implementation", "sliding_window_pattern", "use_embedding_sharing"}
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Command R and which layers rotate."""
        arguments = super().arguments(fields)
        return arguments | {
            "rope_layers": tuple(kind == SLIDING_ATTENTION for kind in arguments["layer_types"])
        }


ARCHITECTURE = Cohere2()
