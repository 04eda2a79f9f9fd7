"""Granite 4, hybrid. Source: `transformers` `GraniteMoeHybridForCausalLM`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import onnx_ir as ir

from mobius_components import ArchitectureConfig
from mobius_components.config import FULL_ATTENTION, MAMBA2
from mobius_hf.architectures.granite import Granite
from mobius_hf.architectures.granitemoe import GraniteMoe
from mobius_hf.architectures.granitemoeshared import GraniteMoeShared
from mobius_hf.config import ConfigFields
from mobius_hf.layer_kinds import read_layer_kinds
from mobius_hf.state_spaces import (
    IMPLEMENTATION_FIELDS,
    MAMBA2_DEFAULTS,
    TRAINING_FIELDS,
    read_mamba2,
)
from mobius_hf.transforms import (
    Named,
    Split,
    Transform,
    gate_up_sizes,
    leaf,
    shared_gate_up_sizes,
)
from mobius_hf.windows import Windows
from mobius_ir_rules.lazy import DerivedTensor

_KINDS = {
    "linear_attention": MAMBA2,
    "mamba": MAMBA2,
    "full_attention": FULL_ATTENTION,
    "attention": FULL_ATTENTION,
}


@dataclasses.dataclass(frozen=True)
class SharedFeedForward(Transform):
    """The layer that every token goes through: beside experts, or where there are none, alone."""

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield gate and up, which are stored as one, or down."""
        place = match[1] if config.moe is None else f"{match[1]}.shared_experts"
        if match[2] == "down_proj":
            name = f"{place}.down_proj.weight"
            yield name, DerivedTensor(leaf(tensor), name)
            return
        into = (f"{place}.gate_proj.weight", f"{place}.up_proj.weight")
        sizes = gate_up_sizes if config.moe is None else shared_gate_up_sizes
        yield from Split(self.pattern, into, sizes).apply(match, tensor, config)


class GraniteMoeHybrid(GraniteMoeShared):
    """Mamba 2 in most layers, attention in the others; experts beside a shared layer, or it alone.

    Where there are no experts, `shared_intermediate_size` is the feed-forward layers' width.
    """

    model_type = "granitemoehybrid"
    required = Granite.required
    defaults: ClassVar[Mapping[str, Any]] = {
        **GraniteMoeShared.defaults,
        **MAMBA2_DEFAULTS,
        "shared_intermediate_size": 1024,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
        "attention_multiplier": 1.0,
    }
    fixed: ClassVar[Mapping[str, object]] = {"normalization_function": "rmsnorm"}
    irrelevant = GraniteMoe.irrelevant | TRAINING_FIELDS | IMPLEMENTATION_FIELDS | {"init_method"}
    transforms = (
        SharedFeedForward(r"(.*\.mlp)\.shared_experts\.(gate_up_proj|down_proj)\.weight"),
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return no window, and the type of each layer."""
        kinds = read_layer_kinds(fields, _KINDS, "layer_types", "layers_block_type")
        return Windows(None, kinds or (MAMBA2,) * fields.integer("num_hidden_layers"))

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the rotary embedding, if attention has positions."""
        stated = fields.value("position_embedding_type")
        if stated not in ("rope", "nope", None):
            raise fields.unfit("position_embedding_type", stated, "'rope', 'nope' or null")
        rotary = super().rotary(fields, windows)
        return rotary if stated == "rope" else {"rope_theta": None}

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of Granite, the state space and the experts, if there are any."""
        experts, chosen = (
            fields.integer(name) for name in ("num_local_experts", "num_experts_per_tok")
        )
        if experts and chosen:
            arguments = super().arguments(fields)
        else:
            arguments = Granite.arguments(self, fields) | {
                "intermediate_size": fields.integer("shared_intermediate_size")
            }
        return arguments | {"mamba2": read_mamba2(fields)}


ARCHITECTURE = GraniteMoeHybrid()
