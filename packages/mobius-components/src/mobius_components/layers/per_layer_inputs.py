"""`PerLayerInputs`: token ids -> what each layer is given beside the residual stream."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.config import ArchitectureConfig
from mobius_components.layers.embedding import Embedding
from mobius_components.layers.linear import Linear
from mobius_components.layers.norm import RMSNorm
from mobius_components.per_layer_config import PerLayerInputConfig


class PerLayerInputs(nn.Module):
    """A table of vectors for each token and layer, and a projection of the embedded token.

    Source: `transformers` `Gemma3nTextModel.get_per_layer_inputs`, `project_per_layer_inputs`.
    """

    def __init__(self, config: ArchitectureConfig, inputs: PerLayerInputConfig) -> None:
        super().__init__()
        layers, hidden, size = config.num_hidden_layers, config.hidden_size, inputs.hidden_size
        self.embed_tokens_per_layer = Embedding(inputs.vocab_size, layers * size)
        self.per_layer_model_projection = Linear(hidden, layers * size)
        self.per_layer_projection_norm = RMSNorm(size, config.rms_norm_eps)
        self._layers, self._size, self._hidden = layers, size, hidden
        self._rows = inputs.vocab_size if inputs.vocab_size < config.vocab_size else None

    def forward(self, op: OpBuilder, input_ids: ir.Value, embedded: ir.Value) -> list[Any]:
        """Return `[B, S, size]` for each layer.

        Args:
            op: Builder.
            input_ids: int64 `[B, S]`; ids past the table have row 0.
            embedded: The embedded tokens, `[B, S, hidden]`.
        """
        if self._rows is not None:
            inside = op.Less(input_ids, op.Constant(value_int=self._rows))
            input_ids = op.Where(inside, input_ids, op.Constant(value_int=0))
        known = op.Mul(self.embed_tokens_per_layer(op, input_ids), self._size**0.5)
        projected = op.Mul(self.per_layer_model_projection(op, embedded), self._hidden**-0.5)
        split = [0, 0, self._layers, self._size]
        normed = self.per_layer_projection_norm(op, op.Reshape(projected, split))
        both = op.Mul(op.Add(normed, op.Reshape(known, split)), 2.0**-0.5)
        parts = op.Split(both, num_outputs=self._layers, axis=2, _outputs=self._layers)
        parts = parts if self._layers > 1 else [parts]
        return [op.Squeeze(part, [2]) for part in parts]
