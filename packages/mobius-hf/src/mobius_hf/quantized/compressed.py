"""compressed-tensors checkpoints: packed integers, plain integers, and 8-bit floats.

Tensors of a module:

* "pack-quantized": `weight_packed` int32 `[N, ceil(K / P)]`, `P = 32 / bits` integers to a word
  along `K`, the first in the lowest bits, each stored plus 2**(bits - 1); `weight_shape` int64, `N`
  and `K`. Zero points, if there are some, in the same way, packed along `N`: `weight_zero_point`
  int32 `[ceil(N / P), groups]`.
* "int-quantized" and "naive-quantized": `weight` int8 `[N, K]`, `weight_zero_point` int8
  `[N, groups]`.
* "float-quantized": `weight` F8_E4M3 `[N, K]`, see `fp8`.

`weight_scale` is `[N, groups]`, `[N, 1]` or `[1]`. `weight_g_idx` int32 `[K]` is the group of each
column, where columns were quantized in another order.

`w = (q - zero point) * scale`, with signed integers. Activations stay floats, whatever was
calibrated for them. Source: `compressed_tensors` 0.20, `compressors/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.quantized import fp8
from mobius_hf.quantized.modules import FLOATS, WORDS, Layout, Module, sizes
from mobius_hf.quantized.packing import (
    Array,
    block_quantized,
    block_size_for,
    bytes_to_blocks,
    dequantized,
    float_tensor,
    integers_to_blocks,
    per_word,
    unpack_words,
)
from mobius_ir_rules.block_quantization import BITS, BlockFormat

LAYOUT = Layout(
    (
        ".weight_packed",
        ".weight_scale",
        ".weight_zero_point",
        ".weight_g_idx",
        ".weight_shape",
    ),
    ignored=(
        ".input_scale",
        ".input_zero_point",
        ".output_scale",
        ".output_zero_point",
        ".q_scale",
        ".k_scale",
        ".v_scale",
        ".q_zero_point",
        ".k_zero_point",
        ".v_zero_point",
    ),
)

_INT8 = (ir.DataType.INT8,)
_INT64 = (ir.DataType.INT64,)


def decode(module: Module, settings: Mapping[str, Any]) -> ir.TensorProtocol:
    """Return the weight `[N, K]` of a module.

    Args:
        module: Its tensors.
        settings: `quantization_config`.

    Raises:
        CheckpointError: if the tensors are of no format that is read.
    """
    if module.get(".weight_packed") is not None:
        return _packed(module)
    weight = module[".weight"]
    if weight.dtype in fp8.FLOATS:
        shape = sizes(weight)
        scale = module.require(".weight_scale", fp8.SCALES)
        block = fp8.block_of(module, shape, scale, _block_structure(settings))
        return fp8.ScaledTensor(weight, scale, block, f"{module.name}.weight")
    return _plain(module)


def _packed(module: Module) -> ir.TensorProtocol:
    words = module.require(".weight_packed", WORDS, 2)
    n, k = (int(size) for size in module.require(".weight_shape", _INT64, 1).numpy())
    columns = sizes(words)[1]
    bits = next((bits for bits in BITS if -(-k // per_word(bits)) == columns), None)
    if bits is None or sizes(words)[0] != n:
        raise CheckpointError(
            f"{module.name}.weight_packed has shape {list(words.shape)} for a weight of {n} by "
            f"{k}; needed: rows of integers of {' or '.join(map(str, BITS))} bits. Use the "
            "checkpoint that it was quantized from."
        )
    zeros = module.get(".weight_zero_point")
    if zeros is not None:
        module.require(".weight_zero_point", WORDS, 2)

    def unpacked(words: Array) -> Array:
        return unpack_words(words, bits)[:, :k]

    def unpacked_zeros(words: Array) -> Array:
        return unpack_words(np.ascontiguousarray(words.T), bits)[:, :n].T

    def blocks(words: Array, form: BlockFormat) -> Array:
        octets = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
        return bytes_to_blocks(octets, k, form)

    return _weight(module, words, (n, k), bits, zeros, (unpacked, unpacked_zeros, blocks))


def _plain(module: Module) -> ir.TensorProtocol:
    weight = module.require(".weight", _INT8, 2)
    n, k = sizes(weight)
    zeros = module.get(".weight_zero_point")
    if zeros is not None:
        module.require(".weight_zero_point", _INT8, 2)

    def unsigned(integers: Array) -> Array:
        return np.ascontiguousarray(integers).view(np.uint8) ^ np.uint8(0x80)

    def blocks(integers: Array, form: BlockFormat) -> Array:
        return integers_to_blocks(unsigned(integers), form)

    return _weight(module, weight, (n, k), 8, zeros, (unsigned, unsigned, blocks))


def _weight(
    module: Module,
    integers: ir.TensorProtocol,
    shape: tuple[int, int],
    bits: int,
    zeros: ir.TensorProtocol | None,
    functions: tuple[Any, Any, Any],
) -> ir.TensorProtocol:
    """Return the weight of unsigned integers, zero points and blocks that functions give."""
    unpacked, unpacked_zeros, blocks = functions
    n, k = shape
    scales = module.require(".weight_scale", FLOATS)
    groups = _groups(module, scales, n)
    group, order = _order(module, k, groups)
    name = f"{module.name}.weight"
    size = None if order is not None else block_size_for(group, k)

    def rows_of_scales(scales: Array) -> Array:
        return np.broadcast_to(scales.reshape(-1, groups), (n, groups))

    if size is None:
        columns = np.arange(k) // group if order is None else order
        middle = np.full((n, groups), 1 << (bits - 1), np.uint8)

        def floats(integers: Array, scales: Array, *zeros: Array) -> Array:
            points = unpacked_zeros(zeros[0]) if zeros else middle
            return dequantized(unpacked(integers), points, rows_of_scales(scales), columns)

        tensors = [integers, scales, *([] if zeros is None else [zeros])]
        return float_tensor(name, floats, tensors, (n, k))
    form = BlockFormat(bits, size, symmetric=zeros is None)
    return block_quantized(
        name,
        form,
        (n, k),
        group,
        packed=(lambda integers: blocks(integers, form), (integers,)),
        scales=(rows_of_scales, scales),
        zeros=None if zeros is None else (unpacked_zeros, zeros),
    )


def _groups(module: Module, scales: ir.TensorProtocol, n: int) -> int:
    """Return the number of groups of a row."""
    shape = list(sizes(scales))
    if shape in ([], [1], [1, 1], [n]):
        return 1
    if len(shape) != 2 or shape[0] != n:
        raise CheckpointError(
            f"{module.name}.weight_scale has shape {shape} for {n} rows; needed: one scale, or "
            "some a row. Does quantization_config belong to this checkpoint?"
        )
    return shape[1]


def _order(module: Module, k: int, groups: int) -> tuple[int, Array | None]:
    """Return the length of a group, and the group of each column where they are mixed."""
    if k % groups:
        raise CheckpointError(
            f"{module.name} has {groups} groups in rows of {k}; needed: groups of equal length. "
            "Download it again."
        )
    group = k // groups
    if module.get(".weight_g_idx") is None:
        return group, None
    order = module.require(".weight_g_idx", WORDS, 1).numpy()
    if order.shape == (k,) and ((order == -1).all() or (order == np.arange(k) // group).all()):
        return group, None
    if order.shape != (k,) or order.min() < 0 or order.max() >= groups:
        raise CheckpointError(
            f"{module.name}.weight_g_idx has {order.size} entries from {order.min()} to "
            f"{order.max()}; needed: one of {groups} groups for each of {k} columns. Download it "
            "again."
        )
    return group, order


def _block_structure(settings: Mapping[str, Any]) -> object:
    """Return the blocks of the first group of settings that has some."""
    for group in (settings.get("config_groups") or {}).values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and weights.get("block_structure"):
            return weights["block_structure"]
    return None
