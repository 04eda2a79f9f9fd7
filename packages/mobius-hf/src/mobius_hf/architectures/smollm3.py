"""SmolLM 3. Source: `transformers` `SmolLM3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import SLIDING_ATTENTION
from mobius_hf.architectures.llama import Llama
from mobius_hf.config import ConfigFields
from mobius_hf.windows import Windows, by_layer_types


class SmolLM3(Llama):
    """Llama, some of whose layers do not rotate."""

    model_type = "smollm3"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Llama.defaults,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    }
    fixed: ClassVar[Mapping[str, object]] = {}
    # The lists that they make say it.
    irrelevant = frozenset({"max_window_layers", "no_rope_layer_interval"})

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the layers that `layer_types` says slide."""
        windows = by_layer_types(fields)
        slides = SLIDING_ATTENTION in windows.layer_types
        if slides and not fields.flag("use_sliding_window"):
            raise fields.unfit("use_sliding_window", False, "true, because layer_types has sliding")
        fields.value("use_sliding_window")
        return windows

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Llama and which layers rotate: a 1 in `no_rope_layers`."""
        arguments = super().arguments(fields)
        layers = arguments["num_hidden_layers"]
        rotates = fields.value("no_rope_layers")
        if not isinstance(rotates, list | tuple) or len(rotates) < layers:
            raise fields.unfit("no_rope_layers", rotates, "0 or 1 for each layer")
        return arguments | {"rope_layers": tuple(bool(each) for each in rotates[:layers])}


ARCHITECTURE = SmolLM3()
