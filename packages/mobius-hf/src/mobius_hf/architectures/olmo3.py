"""OLMo 3. Source: `transformers` `Olmo3ForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.olmo2 import Olmo2
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_ropes, sliding_beside_full
from mobius_hf.windows import Windows, by_layer_types


class Olmo3(Olmo2):
    """OLMo 2 with sliding layers, which have a rotary embedding of their own."""

    model_type = "olmo3"
    defaults: ClassVar[Mapping[str, Any]] = {**Olmo2.defaults, "sliding_window": 4096}

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding of full layers, and that of sliding ones."""
        return sliding_beside_full(read_ropes(fields, set(windows.layer_types)))


ARCHITECTURE = Olmo3()
