"""4-bit floats (E2M1) with a scale for each group -> the floats that they stand for.

* "mxfp4" (gpt-oss): stacked weights of experts, `NAME_blocks` uint8 `[E, out, groups, 16]` and
  `NAME_scales` uint8 `[E, out, groups]`, exponents of two plus 127. The weight is `[E, in, out]`,
  as transformers has it (`integrations/mxfp4.py`, `convert_moe_packed_tensors`).
* "NVFP4" (modelopt): `weight` uint8 `[N, K / 2]`, `weight_scale` F8_E4M3 `[N, K / 16]`, and
  `weight_scale_2`, one float32 for all (`modelopt/torch/quantization/qtensor/nvfp4_tensor.py`).

A byte holds two numbers, the first in its low half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius.streaming import visit_chunks
from mobius_hf.errors import CheckpointError
from mobius_hf.quantized.modules import Layout, Module, sizes
from mobius_hf.quantized.packing import Array
from mobius_hf.transforms import leaf
from mobius_ir_rules.lazy import DerivedTensor, Transpose
from mobius_ir_rules.visiting import RowSink

MXFP4_LAYOUT = Layout(("_blocks", "_scales"), weight="")
NVFP4_LAYOUT = Layout(
    (".weight_scale", ".weight_scale_2"),
    ignored=(".input_scale", ".k_scale", ".v_scale", ".output_scale"),
)

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.array([*_POSITIVE, *(-value for value in _POSITIVE)], np.float32)
"""What each 4-bit float is. Source: OCP Microscaling Formats 1.0, table of E2M1."""

_BYTES = (ir.DataType.UINT8,)
_BIAS = 127
_MXFP4_GROUP = 16  # bytes
_NVFP4_GROUP = 16  # numbers


def decode_mxfp4(module: Module, settings: Mapping[str, Any]) -> ir.TensorProtocol:
    """Return the weights `[E, in, out]` of experts.

    Args:
        module: `_blocks` and `_scales`.
        settings: `quantization_config`; nothing in it matters.

    Raises:
        CheckpointError: if the tensors do not fit each other.
    """
    del settings
    blocks = module.require("_blocks", _BYTES, 4)
    scales = module.require("_scales", _BYTES, 3)
    experts, out, groups, size = sizes(blocks)
    if [*scales.shape] != [experts, out, groups] or size != _MXFP4_GROUP:
        raise CheckpointError(
            f"{module.name} has blocks {list(blocks.shape)} and scales {list(scales.shape)}; "
            f"needed: blocks of {_MXFP4_GROUP} bytes, and a scale for each. Download it again."
        )

    def exponents(scales: Array) -> Array:
        return scales.astype(np.int32) - _BIAS

    def scaled(numbers: Array, scales: Array) -> Array:
        return np.ldexp(numbers, scales)

    rows = Fp4Tensor(blocks, scales, exponents, scaled, (experts, out, groups * 2 * size))
    return DerivedTensor(Transpose(leaf(rows), (0, 2, 1)), module.name)


def decode_nvfp4(module: Module, settings: Mapping[str, Any]) -> ir.TensorProtocol:
    """Return the weight `[N, K]` of a module.

    Raises:
        CheckpointError: if the tensors do not fit each other.
    """
    del settings
    weight = module.require(".weight", _BYTES, 2)
    scales = module.require(".weight_scale", (ir.DataType.FLOAT8E4M3FN,), 2)
    overall = module.require(".weight_scale_2", (ir.DataType.FLOAT,))
    n, width = sizes(weight)
    if [*scales.shape] != [n, 2 * width // _NVFP4_GROUP] or 2 * width % _NVFP4_GROUP:
        raise CheckpointError(
            f"{module.name} has a weight {list(weight.shape)} and scales {list(scales.shape)}; "
            f"needed: a scale for each {_NVFP4_GROUP // 2} bytes of a row. Download it again."
        )

    def factors(scales: Array) -> Array:
        return scales.astype(np.float32) * overall.numpy().astype(np.float32).reshape(())

    return Fp4Tensor(weight, scales, factors, np.multiply, (n, 2 * width), f"{module.name}.weight")


class Fp4Tensor(ir.LazyTensor):
    """4-bit floats, each group scaled, float32; read some rows at a time."""

    def __init__(
        self,
        packed: ir.TensorProtocol,
        scales: ir.TensorProtocol,
        read_scales: Callable[[Array], Array],
        scaled: Callable[[Array, Array], Array],
        shape: tuple[int, ...],
        name: str | None = None,
    ) -> None:
        """Take the tensors; nothing is read.

        Args:
            packed: uint8, two numbers a byte, in row-major order of `shape`.
            scales: One for each group of a row.
            read_scales: Makes of their data what `scaled` takes.
            scaled: Scales numbers `[rows, groups, group]` by scales `[rows, groups, 1]`.
            shape: Of the numbers.
            name: The tensor's name.
        """
        super().__init__(self._evaluate, ir.DataType.FLOAT, ir.Shape(shape), name=name)
        self._packed = packed
        self._scales = scales
        self._read_scales = read_scales
        self._scaled = scaled

    def visit(self, visit: Callable[[Array], object]) -> None:
        """Call `visit` with every part of the data."""
        shape = self.shape.numpy()
        rows, k = math.prod(shape[:-1]), shape[-1]
        scales = self._read_scales(self._scales.numpy()).reshape(rows, -1, 1)
        done = 0

        def convert(octets: Array) -> None:
            nonlocal done
            halves = np.stack([octets & 0xF, octets >> 4], axis=-1)
            numbers = VALUES[halves.reshape(len(octets), scales.shape[1], -1)]
            result = self._scaled(numbers, scales[done : done + len(octets)])
            done += len(octets)
            visit(result.reshape(-1))

        sink = RowSink(k // 2, convert)
        visit_chunks(self._packed, sink)
        sink.close()

    def _evaluate(self) -> ir.TensorProtocol:
        parts: list[Array] = []
        self.visit(parts.append)
        return ir.Tensor(np.concatenate(parts).reshape(self.shape.numpy()), name=self.name)
