"""`Embedding`: token ids `[B, S]` -> vectors `[B, S, hidden]`."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.parameter import Parameter


class Embedding(nn.Module):
    """A table of vectors, one for each token. Source: `torch.nn.Embedding`."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        super().__init__()
        self.weight = Parameter([num_embeddings, embedding_dim])

    def forward(self, op: OpBuilder, input_ids: ir.Value) -> Any:
        """Return the rows of the table that `input_ids` name."""
        return op.Gather(self.weight, input_ids, axis=0)

    def logits(self, op: OpBuilder, hidden_states: ir.Value) -> Any:
        """Return `[B, S, num_embeddings]`: the table used as a tied output head."""
        return op.MatMul(hidden_states, op.Transpose(self.weight, perm=[1, 0]))
