"""Granite with windows and experts. Source: `transformers` `GraniteMoeSWAForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.granite_swa import GraniteSWA
from mobius_hf.architectures.granitemoeshared import GraniteMoeShared


class GraniteMoeSWA(GraniteSWA, GraniteMoeShared):
    """The attention of Granite SWA, the experts of Granite MoE."""

    model_type = "granitemoe_swa"
    required = GraniteMoeShared.required
    defaults: ClassVar[Mapping[str, Any]] = {**GraniteMoeShared.defaults, **GraniteSWA.defaults}
    irrelevant = GraniteMoeShared.irrelevant
    renames = GraniteMoeShared.renames


ARCHITECTURE = GraniteMoeSWA()
