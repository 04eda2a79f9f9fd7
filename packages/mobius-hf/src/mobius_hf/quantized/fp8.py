"""8-bit floats with a scale for each block, row or tensor -> the floats that they stand for.

Tensors of a module: `weight` F8_E4M3 or F8_E5M2 `[N, K]`, and its scale, which it is multiplied
with whatever the name says: `weight_scale_inv` or `weight_scale`, one number, one a row, or one a
block (`weight_block_size`, `[ceil(N / rows), ceil(K / columns)]`). Scales are floats, or F8_E8M0,
powers of two.

Source: `transformers` `integrations/finegrained_fp8.py`; DeepSeek-V3's `fp8_cast_bf16.py`. The
product is float32, rounded once to the build's dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius.streaming import visit_chunks
from mobius_hf.errors import CheckpointError
from mobius_hf.quantized.modules import Layout, Module, sizes
from mobius_hf.quantized.packing import Array
from mobius_ir_rules.visiting import RowSink

LAYOUT = Layout(
    (".weight_scale_inv", ".weight_scale"),
    ignored=(".input_scale", ".k_scale", ".v_scale", ".activation_scale", ".output_scale"),
)

FLOATS = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)
SCALES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E8M0,
)


def decode(module: Module, settings: Mapping[str, Any]) -> ir.TensorProtocol:
    """Return the weight of a module; the weight itself where it is no 8-bit float.

    Args:
        module: Its tensors.
        settings: `quantization_config`.

    Raises:
        CheckpointError: if the scale fits no weight of that shape.
    """
    ending = ".weight_scale_inv" if module.get(".weight_scale_inv") else ".weight_scale"
    weight, scale = module.require(".weight", FLOATS), module.require(ending, SCALES)
    shape = sizes(weight)
    block = settings.get("weight_block_size")
    return ScaledTensor(
        weight, scale, block_of(module, shape, scale, block), f"{module.name}.weight"
    )


def block_of(
    module: Module, shape: tuple[int, ...], scale: ir.TensorProtocol, block: object
) -> tuple[int, int]:
    """Return rows and columns of a block.

    Raises:
        CheckpointError: if the scale has another shape.
    """
    found = sizes(scale)
    if len(shape) == 2:
        n, k = shape
        if found in ((), (1,), (1, 1)):
            return n, k
        if found in ((n,), (n, 1)):
            return 1, k
        if isinstance(block, list | tuple) and len(block) == 2 and min(block) > 0:
            rows, columns = (int(size) for size in block)
            if found == (-(-n // rows), -(-k // columns)):
                return rows, columns
    raise CheckpointError(
        f"{module.name} has a scale of shape {list(found)} for a weight of shape {list(shape)}, "
        f"and weight_block_size is {block!r}; needed: one scale, one a row, or one a block. Does "
        "quantization_config belong to this checkpoint?"
    )


class ScaledTensor(ir.LazyTensor):
    """Small numbers `[N, K]` times a scale for each block, float32; read some rows at a time.

    Attributes:
        numbers: The numbers, of any dtype that numpy makes float32.
        scale: `[ceil(N / rows), ceil(K / columns)]`, or with fewer axes for fewer scales.
        block: Rows and columns.
    """

    def __init__(
        self,
        numbers: ir.TensorProtocol,
        scale: ir.TensorProtocol,
        block: tuple[int, int],
        name: str,
    ) -> None:
        """Take the tensors; nothing is read."""
        shape = ir.Shape(numbers.shape.numpy())
        super().__init__(self._evaluate, ir.DataType.FLOAT, shape, name=name)
        self.numbers = numbers
        self.scale = scale
        self.block = block

    def visit(self, visit: Callable[[Array], object]) -> None:
        """Call `visit` with every part of the data."""
        n, k = self.shape.numpy()
        rows, columns = self.block
        scale = self.scale.numpy().astype(np.float32).reshape(-(-n // rows), -(-k // columns))
        if columns < k:
            scale = np.repeat(scale, columns, axis=1)[:, :k]
        done = 0

        def multiply(part: Array) -> None:
            nonlocal done
            numbers = part.astype(np.float32)
            numbers *= scale[np.arange(done, done + len(part)) // rows]
            done += len(part)
            visit(numbers.reshape(-1))

        sink = RowSink(k, multiply)
        visit_chunks(self.numbers, sink)
        sink.close()

    def _evaluate(self) -> ir.TensorProtocol:
        parts: list[Array] = []
        self.visit(parts.append)
        return ir.Tensor(np.concatenate(parts).reshape(self.shape.numpy()), name=self.name)
