"""IQuest-Coder. Source: `transformers` `LlamaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.llama import Llama


class IQuestCoder(Llama):
    """Llama with other defaults."""

    model_type = "iquestcoder"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
    }
    fixed: ClassVar[Mapping[str, object]] = {"use_sliding_window": False}
    irrelevant = frozenset({"max_window_layers", "sliding_window"})


ARCHITECTURE = IQuestCoder()
