"""AWQ checkpoints in the "gemm" layout: words of 4-bit integers along `N`, in their own order.

Tensors of a module (AutoAWQ's `WQLinear_GEMM.from_linear`):

* `qweight` int32 `[K, N / 8]`: word `j` of a row holds the integers of columns `8 j` to `8 j + 7`,
  in the order 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on.
* `qzeros` int32 `[groups, N / 8]`: likewise, as they are.
* `scales` floats `[groups, N]`.

`w[k, n] = scales[g, n] * (q[k, n] - zero[g, n])`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.quantized.modules import FLOATS, WORDS, Layout, Module, sizes
from mobius_hf.quantized.packing import (
    Array,
    block_quantized,
    block_size_for,
    dequantized,
    float_tensor,
    integers_to_blocks,
    unpack_words,
)
from mobius_ir_rules.block_quantization import BlockFormat

LAYOUT = Layout((".qweight", ".qzeros", ".scales"))
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column of a word that each integer is for, from the lowest bits on."""

_BITS = 4
_PER_WORD = 8


def decode(module: Module, settings: Mapping[str, Any]) -> ir.TensorProtocol:
    """Return the weight `[N, K]` of a module.

    Args:
        module: Its tensors.
        settings: `quantization_config`.

    Raises:
        CheckpointError: if the tensors are not of this format.
    """
    _check(settings, module)
    words = module.require(".qweight", WORDS, 2)
    zeros = module.require(".qzeros", WORDS, 2)
    scales = module.require(".scales", FLOATS, 2)
    groups, n = sizes(scales)
    k = sizes(words)[0]
    group = _group_size(module, k, groups, settings)
    wanted = {".qweight": [k, n // _PER_WORD], ".qzeros": [groups, n // _PER_WORD]}
    for ending, shape in wanted.items():
        if list(module[ending].shape) != shape:
            raise CheckpointError(
                f"{module.name}{ending} has shape {list(module[ending].shape)}; needed: {shape}. "
                "Does quantization_config belong to this checkpoint?"
            )
    name = f"{module.name}.weight"
    size = block_size_for(group, k)
    if size is None:

        def floats(words: Array, zeros: Array, scales: Array) -> Array:
            return dequantized(_rows(words), _rows(zeros), scales.T, np.arange(k) // group)

        return float_tensor(name, floats, (words, zeros, scales), (n, k))
    form = BlockFormat(_BITS, size, symmetric=False)
    return block_quantized(
        name,
        form,
        (n, k),
        group,
        packed=(lambda words: integers_to_blocks(_rows(words), form), (words,)),
        scales=(np.transpose, scales),
        zeros=(_rows, zeros),
    )


def _rows(words: Array) -> Array:
    """Return the integers of words `[rows, N / 8]` as uint8 `[N, rows]`."""
    found = unpack_words(words, _BITS).reshape(words.shape[0], words.shape[1], _PER_WORD)
    columns = np.empty_like(found)
    columns[..., ORDER] = found
    return np.ascontiguousarray(columns.reshape(words.shape[0], -1).T)


def _check(settings: Mapping[str, Any], module: Module) -> None:
    bits = settings.get("bits", settings.get("w_bit", _BITS))
    version = str(settings.get("version", "gemm")).lower()
    if bits != _BITS or version != "gemm":
        raise CheckpointError(
            f"{module.name} is stored by AWQ with {bits!r} bits in the layout {version!r}; needed: "
            f"{_BITS} bits in the layout 'gemm'. Use the checkpoint that it was quantized from."
        )


def _group_size(module: Module, k: int, groups: int, settings: Mapping[str, Any]) -> int:
    group = settings.get("group_size", settings.get("q_group_size", -1))
    if groups == 1:
        return k
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or k != groups * group:
        raise CheckpointError(
            f"{module.name} has {groups} groups in rows of {k}, and group_size is {group!r}. Does "
            "quantization_config belong to this checkpoint?"
        )
    return group
