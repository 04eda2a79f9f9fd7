"""Granite with experts and a shared one. Source: `transformers` `GraniteMoeSharedForCausalLM`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.granitemoe import GraniteMoe
from mobius_hf.config import ConfigFields
from mobius_hf.transforms import Split, Transform, shared_gate_up_sizes

_LAYER = r"^(?:model\.)?(layers\.\d+)\.shared_mlp\."


class GraniteMoeShared(GraniteMoe):
    """Granite with experts, beside which every token goes through a shared one."""

    model_type = "granitemoeshared"
    defaults: ClassVar[Mapping[str, Any]] = {**GraniteMoe.defaults, "shared_intermediate_size": 0}
    renames = (
        (rf"{_LAYER}input_linear\.", r"model.\1.mlp.shared_experts.gate_up_proj."),
        (rf"{_LAYER}output_linear\.", r"model.\1.mlp.shared_experts.down_proj."),
        *GraniteMoe.renames,
    )
    transforms: ClassVar[tuple[Transform, ...]] = (
        Split(
            r"(.*\.shared_experts)\.gate_up_proj\.weight",
            (r"\1.gate_proj.weight", r"\1.up_proj.weight"),
            shared_gate_up_sizes,
        ),
    )

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Granite with experts, and the shared expert where it has one."""
        arguments = super().arguments(fields)
        width = fields.integer("shared_intermediate_size") or None
        moe = dataclasses.replace(arguments["moe"], shared_expert_intermediate_size=width)
        return arguments | {"moe": moe}


ARCHITECTURE = GraniteMoeShared()
