"""A weight `[N, K]` of floats -> its integers, scales and zero points, computed while it is read.

`quantize_weight(source, form)` gives the three as expressions. They read their source a few rows
at a time, so that neither the floats nor their float32 form are ever whole in memory, and keep
nothing.

A weight may also come from a checkpoint that was quantized by someone else, as a
`BlockQuantizedTensor`: floats to whoever asks for floats. An expression of the same format takes
its integers and scales as they are instead of quantizing its floats anew, so the graph need not
know before weights are bound where they come from.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_ir_rules.block_quantization import (
    Array,
    BlockFormat,
    QuantizedRows,
    block_parameters,
    dequantize_rows,
    quantize_rows,
)
from mobius_ir_rules.expressions import Cast, Concat, Expression, Leaf, Reshape
from mobius_ir_rules.visiting import RowSink, Visit, VisitedExpression, visit_numbers

__all__ = [
    "BlockQuantizedStack",
    "BlockQuantizedTensor",
    "QuantizedWeight",
    "computation_of",
    "quantize_weight",
    "visit_together",
]

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True, eq=False)
class QuantizedWeight:
    """The parts of a quantized weight, as `com.microsoft::MatMulNBits` takes them.

    Attributes:
        form: How it is quantized.
        k: Length of a row.
        packed: uint8 `[N, blocks, block_bytes]`.
        scales: Floats `[N, blocks]`.
        zero_points: uint8 `[N, zero_point_bytes]`; `None` for a symmetric format.
    """

    form: BlockFormat
    k: int
    packed: Expression
    scales: Expression
    zero_points: Expression | None

    def with_scales_as(self, dtype: ir.DataType) -> QuantizedWeight:
        """Return the weight with scales of another float type, rounded once when they are read."""
        if self.scales.dtype == dtype:
            return self
        return dataclasses.replace(self, scales=Cast(self.scales, dtype))


class BlockQuantizedTensor(ir.LazyTensor):
    """A weight `[N, K]` that is quantized already: floats when they are read.

    Attributes:
        weight: Its parts; the scales have the tensor's dtype.
    """

    def __init__(
        self, weight: QuantizedWeight, name: str | None = None, matrices: int | None = None
    ) -> None:
        """Take the parts; nothing is read.

        Args:
            weight: The parts.
            name: The tensor's name.
            matrices: Where the rows are those of several matrices: how many. The tensor is
                `[matrices, N / matrices, K]` then.
        """
        rows = weight.scales.shape[0]
        stack = [rows] if matrices is None else [matrices, rows // matrices]
        shape = ir.Shape([*stack, weight.k])
        super().__init__(self._dequantize, weight.scales.dtype, shape, name=name)
        self.weight = weight

    def with_dtype(self, dtype: ir.DataType) -> BlockQuantizedTensor:
        """Return the tensor with another float type."""
        return BlockQuantizedTensor(self.weight.with_scales_as(dtype), self.name)

    def _dequantize(self) -> ir.TensorProtocol:
        weight = self.weight
        zeros = None if weight.zero_points is None else weight.zero_points.array()
        rows = QuantizedRows(weight.packed.array(), weight.scales.array(), zeros)
        floats = dequantize_rows(rows, weight.form, weight.k)
        return ir.Tensor(floats.reshape(self.shape.numpy()), dtype=self.dtype)


class BlockQuantizedStack(BlockQuantizedTensor):
    """Weights of one format one after the other, `[matrices, rows, K]`, quantized already.

    As floats its data come in parts, of one weight after the other.

    Attributes:
        parts: The weights.
    """

    def __init__(
        self, parts: Sequence[BlockQuantizedTensor], matrices: int, name: str | None = None
    ) -> None:
        """Take the weights; nothing is read.

        Raises:
            ValueError: if their formats, lengths of rows or types differ.
        """
        weights = [part.weight for part in parts]
        if len({(each.form, each.k, each.scales.dtype) for each in weights}) != 1:
            raise ValueError("Weights of one format, length of rows and type are needed")
        zeros = [each.zero_points for each in weights if each.zero_points is not None]
        weight = dataclasses.replace(
            weights[0],
            packed=Concat(tuple(each.packed for each in weights), 0),
            scales=Concat(tuple(each.scales for each in weights), 0),
            zero_points=Concat(tuple(zeros), 0) if zeros else None,
        )
        super().__init__(weight, name, matrices)
        self.parts = tuple(parts)
        self._matrices = matrices

    def with_dtype(self, dtype: ir.DataType) -> BlockQuantizedStack:
        """Return the tensor with another float type."""
        parts = [part.with_dtype(dtype) for part in self.parts]
        return BlockQuantizedStack(parts, self._matrices, self.name)

    def visit(self, visit: Visit) -> None:
        """Call `visit` with every part of the floats, in row-major order."""
        for part in self.parts:
            visit(np.ascontiguousarray(part.numpy()).reshape(-1))


def quantize_weight(source: Expression, form: BlockFormat) -> QuantizedWeight:
    """Return the parts of `source`, rounded to nearest; nothing is computed yet.

    Args:
        source: Floats `[N, K]`: float32, float16 or bfloat16, which the scales will be too.
        form: How to quantize.

    Raises:
        ValueError: if the source is no such matrix.
    """
    if len(source.shape) != 2 or source.dtype not in _FLOATS:
        raise ValueError(
            f"A matrix of {', '.join(dtype.name for dtype in _FLOATS)} is needed, found "
            f"{source.dtype.name}{list(source.shape)}"
        )
    computation = _Rounding(source, form)
    return QuantizedWeight(
        form,
        source.shape[1],
        _Integers(computation),
        _Scales(computation),
        None if form.symmetric else _ZeroPoints(computation),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Rounding:
    """The computation of all parts of a quantized weight.

    Attributes:
        source: Floats `[N, K]`.
        form: How they are quantized.
    """

    source: Expression
    form: BlockFormat

    def visit(self, visits: Mapping[_Part, Visit]) -> None:
        """Read the source a few rows at a time; take what is quantized already as it is."""
        quantize = quantize_rows if any(map(_is_integers, visits)) else _parameters_alone

        def handle(rows: Array) -> None:
            result = quantize(rows, self.form)
            for part, visit in visits.items():
                visit(part.of_rows(result).reshape(-1))

        for source in _row_parts(self.source):
            stored = _stored(source, self.form)
            if stored is None:
                sink = RowSink(source.shape[1], handle)
                visit_numbers(source, sink)
                sink.close()
            else:
                stored = stored.with_scales_as(self.source.dtype)
                for part, visit in visits.items():
                    visit_numbers(part.of_weight(stored), visit)


@dataclasses.dataclass(frozen=True, eq=False)
class _Part(VisitedExpression):
    """One of the parts of a quantized weight.

    Attributes:
        computation: What computes all of them.
    """

    computation: _Rounding

    def __post_init__(self) -> None:
        """Derive dtype and shape."""
        rows, k = self.computation.source.shape
        dtype, *shape = self.declare(self.computation, k)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", (rows, *shape))

    def leaves(self) -> Iterator[ir.Value]:
        """Yield the source's leaves."""
        return self.computation.source.leaves()

    def visit(self, visit: Visit) -> None:
        """Call `visit` with every part of the data."""
        self.computation.visit({self: visit})

    @staticmethod
    @abc.abstractmethod
    def declare(computation: _Rounding, k: int) -> tuple[Any, ...]:
        """Return dtype, and shape without the rows, for rows of `k`."""

    @staticmethod
    @abc.abstractmethod
    def of_rows(rows: QuantizedRows) -> Array:
        """Return the part of some rows."""

    @staticmethod
    @abc.abstractmethod
    def of_weight(weight: QuantizedWeight) -> Expression:
        """Return the part of a weight that is quantized already."""


class _Integers(_Part):
    @staticmethod
    def declare(computation: _Rounding, k: int) -> tuple[Any, ...]:
        form = computation.form
        return ir.DataType.UINT8, form.blocks(k), form.block_bytes

    @staticmethod
    def of_rows(rows: QuantizedRows) -> Array:
        return rows.packed

    @staticmethod
    def of_weight(weight: QuantizedWeight) -> Expression:
        return weight.packed


class _Scales(_Part):
    @staticmethod
    def declare(computation: _Rounding, k: int) -> tuple[Any, ...]:
        return computation.source.dtype, computation.form.blocks(k)

    @staticmethod
    def of_rows(rows: QuantizedRows) -> Array:
        return rows.scales

    @staticmethod
    def of_weight(weight: QuantizedWeight) -> Expression:
        return weight.scales


class _ZeroPoints(_Part):
    @staticmethod
    def declare(computation: _Rounding, k: int) -> tuple[Any, ...]:
        return ir.DataType.UINT8, computation.form.zero_point_bytes(k)

    @staticmethod
    def of_rows(rows: QuantizedRows) -> Array:
        assert rows.zero_points is not None  # the format is asymmetric
        return rows.zero_points

    @staticmethod
    def of_weight(weight: QuantizedWeight) -> Expression:
        assert weight.zero_points is not None
        return weight.zero_points


def computation_of(expression: Expression) -> object | None:
    """Return what several expressions have in common that are cheaper together, if anything."""
    return expression.computation if isinstance(expression, _Part) else None


def visit_together(visits: Mapping[Expression, Visit]) -> None:
    """Hand out the data of expressions with one `computation_of`, which is done once.

    Raises:
        ValueError: if they have not one.
    """
    parts = {part: visit for part, visit in visits.items() if isinstance(part, _Part)}
    computations = {part.computation for part in parts}
    if len(parts) != len(visits) or len(computations) != 1:
        raise ValueError("The expressions are not of one computation")
    computations.pop().visit(parts)


def _is_integers(part: _Part) -> bool:
    return isinstance(part, _Integers)


def _parameters_alone(rows: Array, form: BlockFormat) -> QuantizedRows:
    scales, zero_points = block_parameters(rows, form)
    return QuantizedRows(np.empty((len(rows), 0, 0), np.uint8), scales, zero_points)


def _row_parts(source: Expression) -> Iterator[Expression]:
    """Yield the expressions whose rows follow each other in `source`."""
    if isinstance(source, Concat) and source.axis == 0:
        for part in source.sources:
            yield from _row_parts(part)
    else:
        yield source


def _stored(part: Expression, form: BlockFormat) -> QuantizedWeight | None:
    """Return the parts of a weight that was quantized in this very format."""
    while isinstance(part, Reshape) and part.shape[-1] == part.source.shape[-1]:
        part = part.source  # matrices of a stack
    tensor = part.value.const_value if isinstance(part, Leaf) else None
    if isinstance(tensor, BlockQuantizedTensor) and tensor.weight.form == form:
        return tensor.weight
    return None
