"""FlexOlmo. Source: `transformers` `FlexOlmoForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.olmoe import Olmoe
from mobius_hf.config import ConfigFields


class FlexOlmo(Olmoe):
    """OLMoE with norms after each part, as OLMo 2."""

    model_type = "flex_olmo"
    defaults: ClassVar[Mapping[str, Any]] = {**Olmoe.defaults, "rms_norm_eps": 1e-6}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of OLMoE and the layout."""
        return super().arguments(fields) | {"layer_layout": "post_norm"}


ARCHITECTURE = FlexOlmo()
