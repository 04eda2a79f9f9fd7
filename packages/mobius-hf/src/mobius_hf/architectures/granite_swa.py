"""Granite with windows. Source: `transformers` `GraniteSWAForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION
from mobius_hf.architectures.granite import Granite
from mobius_hf.config import ConfigFields
from mobius_hf.rope import read_rope
from mobius_hf.windows import Windows, by_layer_types

_THETAS = "layer_rope_theta"


class GraniteSWA(Granite):
    """Granite with attention sinks, windows, and a rotary base for each layer or none."""

    model_type = "granite_swa"
    defaults: ClassVar[Mapping[str, Any]] = {**Granite.defaults, "sliding_window": 128}

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the window of the sliding layers."""
        return by_layer_types(fields)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embeddings of full and of sliding layers, and which layers rotate.

        Raises:
            CheckpointConfigError: if layers of one type rotate at different bases.
        """
        rope, layers = read_rope(fields, set(windows.layer_types)), len(windows.layer_types)
        if fields.value(_THETAS) is None:
            return {"rope_theta": rope.theta, "rope_scaling": rope.scaling}
        thetas = fields.numbers(_THETAS, layers)
        bases: dict[str, float] = {}
        for kind, theta in zip(windows.layer_types, thetas, strict=True):
            if theta and bases.setdefault(kind, theta) != theta:
                needed = f"one base for every {kind} layer, or 0"
                raise fields.unfit(_THETAS, list(thetas), needed)
        full = bases.get(FULL_ATTENTION, rope.theta)
        sliding = {"rope_theta": bases.get(SLIDING_ATTENTION, full), **(rope.scaling or {})}
        return {
            "rope_theta": full,
            "rope_scaling": rope.scaling,
            "rope_by_layer_type": {SLIDING_ATTENTION: sliding},
            "rope_layers": tuple(theta != 0 for theta in thetas),
        }

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Granite and the sinks."""
        return super().arguments(fields) | {"attention_sinks": True}


ARCHITECTURE = GraniteSWA()
