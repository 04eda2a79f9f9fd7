"""Rotary position embedding: tables once a model, rotation once a projection."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.query_temperature_config import QueryTemperatureConfig
from mobius_components.rotary_tables import (
    FloatArray,
    Frequencies,
    RotaryParameters,
    cos_sin,
    frequencies,
)


@dataclasses.dataclass(frozen=True)
class Rotation:
    """What a layer needs to rotate its queries and keys.

    Attributes:
        cos: `[positions, rotary_dim / 2]` in the dtype of the activations.
        sin: As `cos`.
        position_ids: Rows of the tables, int64 `[B, S]`.
        rotary_dim: Width of the rotating part of a head.
        interleaved: Pairs are `(2i, 2i+1)` rather than `(i, i + rotary_dim / 2)`.
    """

    cos: ir.Value
    sin: ir.Value
    position_ids: ir.Value
    rotary_dim: int
    interleaved: bool

    def __call__(self, op: OpBuilder, x: ir.Value, num_heads: int, head_size: int) -> Any:
        """Rotate `x`, `[B, S, num_heads * head_size]`."""
        partial = {} if self.rotary_dim == head_size else {"rotary_embedding_dim": self.rotary_dim}
        return op.RotaryEmbedding(
            x,
            self.cos,
            self.sin,
            self.position_ids,
            num_heads=num_heads,
            interleaved=int(self.interleaved),
            **partial,
        )

    def rotate_heads(self, op: OpBuilder, x: ir.Value) -> Any:
        """Rotate `x`, `[B, heads, S, rotary_dim]`."""
        return op.RotaryEmbedding(
            x, self.cos, self.sin, self.position_ids, interleaved=int(self.interleaved)
        )


def query_temperature(
    op: OpBuilder, position_ids: ir.Value, config: QueryTemperatureConfig, dtype: ir.DataType
) -> Any:
    """Return the factor of the queries, `[B, S, 1]` of `dtype`."""
    positions = op.Unsqueeze(position_ids, [2])
    if config.offset:
        positions = op.Add(positions, config.offset)
    # Positions are not negative, so that the division of integers is the floor.
    spans = op.Cast(op.Div(positions, config.length), to=ir.DataType.FLOAT)
    factor = op.Add(op.Mul(op.Log(op.Add(spans, 1.0)), config.beta), 1.0)
    return factor if dtype == ir.DataType.FLOAT else op.Cast(factor, to=dtype)


class RotaryEmbedding(nn.Module):
    """Makes the `Rotation` of a model. Source: `transformers` `LlamaRotaryEmbedding`.

    Tables reach `max_position_embeddings`; a position beyond them is an error at run time, never a
    wrong number. LongRoPE has two tables, below and above the pretrained length: they are one
    initializer, and the positions of a row are moved to the second once the row has grown past the
    first, so that no control flow is needed. (transformers moves all rows of a batch when the
    longest has; here each row gives what it gives alone.)
    """

    def __init__(
        self, parameters: RotaryParameters, name: str | None = None, *, interleaved: bool = False
    ) -> None:
        super().__init__(name)
        self._rotary = parameters
        self._interleaved = interleaved

    def forward(self, op: OpBuilder, position_ids: ir.Value, dtype: ir.DataType) -> Rotation:
        """Return the rotation at `position_ids` (int64 `[B, S]`) for activations of `dtype`."""
        parts = _table_parts(self._rotary)
        if len(parts) == 2:
            split = parts[0][1]
            length = op.Add(op.ReduceMax(position_ids, [1], keepdims=1), 1)
            offset = op.Where(op.Greater(length, split), op.Constant(value_int=split), 0)
            position_ids = op.Add(position_ids, offset)
        rows = sum(count for _, count in parts)
        shape = ir.Shape([rows, self._rotary.dim // 2])

        def table(name: str, index: int) -> ir.Value:
            def evaluate() -> ir.TensorProtocol:
                return ir.tensor(_tables(parts)[index].astype(dtype.numpy()), dtype=dtype)

            lazy = ir.LazyTensor(evaluate, dtype=dtype, shape=shape, name=name, cache=False)
            return op.initializer(lazy, name=name)

        return Rotation(
            table("cos_cache", 0),
            table("sin_cache", 1),
            position_ids,
            self._rotary.dim,
            self._interleaved,
        )


def _table_parts(parameters: RotaryParameters) -> list[tuple[Frequencies, int]]:
    """Frequencies and number of rows of each part of the table."""
    rows = parameters.max_position_embeddings
    original = parameters.original_max_position_embeddings
    if parameters.rope_type != "longrope" or rows <= original:
        return [(frequencies(parameters), rows)]
    return [(frequencies(parameters), original), (frequencies(parameters, long=True), rows)]


def _tables(parts: list[tuple[Frequencies, int]]) -> tuple[FloatArray, FloatArray]:
    tables = [cos_sin(part, rows) for part, rows in parts]
    return np.concatenate([t[0] for t in tables]), np.concatenate([t[1] for t in tables])
