"""`CausalLMTask`: one decoder graph that maps tokens and a cache to logits and a grown cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from mobius.package import ModelPackage
from mobius.tasks.base import build_graph
from mobius_components import ArchitectureConfig
from mobius_components.layers import LayerState, layer_states
from mobius_eps import ep_capabilities, get_build_dtype
from mobius_ir_rules.passes import InferShapes, SelectEarly

MODEL_KEY = "model"


@dataclasses.dataclass(frozen=True)
class CausalLMTask:
    """Text generation.

    Inputs: `input_ids` int64 `[batch, sequence_length]`, `attention_mask` int64
    `[batch, total_sequence_length]` (1 for a real token, past ones included), `position_ids`
    int64 `[batch, sequence_length]` (index among the real tokens of the row), and for each layer N
    what it carries: `past_key_values.N.key` and `.value`
    `[batch, kv_heads, past_sequence_length, head_size]` where it attends, other states where it
    does not (`mobius_components.layers.layer_states`).

    Outputs: `logits` float32 `[batch, sequence_length, vocab_size]`, and for each such input
    `present.N.key` and so on.

    Attributes:
        last_token_logits: `logits` are those of each row's last real token in the call,
            `[batch, 1, vocab_size]`: all that generating text needs, and much less to compute. The
            last layer works on that token alone behind its attention, where it can.
    """

    last_token_logits: bool = False

    def build(self, module: nn.Module, config: ArchitectureConfig) -> ModelPackage:
        """Return a package with the one model `"model"`, whose role is `"decoder"`."""

        def trace(module: nn.Module, builder: GraphBuilder) -> None:
            input_ids = builder.input("input_ids", _INT64, ["batch", "sequence_length"])
            attention_mask = builder.input(
                "attention_mask", _INT64, ["batch", "total_sequence_length"]
            )
            position_ids = builder.input("position_ids", _INT64, ["batch", "sequence_length"])
            past = [_past(builder, config, layer) for layer in range(config.num_hidden_layers)]
            # Modules need to know the option only where it is used.
            options = {"last_token_logits": True} if self.last_token_logits else {}
            logits, present = module(
                builder.op, input_ids, attention_mask, position_ids, past, **options
            )
            length = 1 if self.last_token_logits else "sequence_length"
            logits.shape = ir.Shape(["batch", length, config.vocab_size])
            _declare_outputs(builder, config, logits, present)

        model = build_graph(module, config.model_type, trace)
        if self.last_token_logits:
            InferShapes()(model)
            SelectEarly()(model)
        package = ModelPackage({MODEL_KEY: model}, roles={MODEL_KEY: "decoder"}, config=config)
        return package.with_build(ep=ep_capabilities(), dtype=get_build_dtype(), reports={})


_INT64 = ir.DataType.INT64


def _past(builder: GraphBuilder, config: ArchitectureConfig, layer: int) -> LayerState:
    return tuple(
        builder.input(
            f"past_key_values.{layer}.{spec.name}", spec.dtype or get_build_dtype(), spec.shape
        )
        for spec in layer_states(config, layer)
    )


def _declare_outputs(
    builder: GraphBuilder,
    config: ArchitectureConfig,
    logits: ir.Value,
    present: Sequence[LayerState],
) -> None:
    builder.add_output(logits, "logits")
    for layer, states in enumerate(present):
        for spec, value in zip(layer_states(config, layer), states, strict=True):
            value.shape = ir.Shape(spec.grown_shape)
            builder.add_output(value, f"present.{layer}.{spec.name}")
