"""GPTQ checkpoints: words of integers along `K`, and zero points that are stored less one.

Tensors of a module (AutoGPTQ's and GPTQModel's `pack`), with `P = 32 / bits` integers to a word,
the first in the lowest bits:

* `qweight` int32 `[K / P, N]`: word `i` of a column holds the integers of rows `i P` to
  `i P + P - 1`.
* `qzeros` int32 `[groups, N / P]`: likewise along `N`. `checkpoint_format` "gptq_v2" stores them as
  they are; "gptq" has taken one from each, by subtracting a word of ones from each word.
* `scales` floats `[groups, N]`.
* `g_idx` int32 `[K]`: the group of each row, where rows were quantized in another order
  (`desc_act`).

`w[k, n] = scales[g, n] * (q[k, n] - zero[g, n])`. Where groups follow each other, the integers go
to `MatMulNBits` as they are. A weight whose groups are mixed becomes floats: `MatMulNBits` has a
scale for columns that follow each other only.
"""

from __future__ import annotations

import functools
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
    bytes_to_blocks,
    dequantized,
    float_tensor,
    per_word,
    require_middle,
    unpack_words,
)
from mobius_ir_rules.block_quantization import BITS, BlockFormat

LAYOUT = Layout((".qweight", ".qzeros", ".scales", ".g_idx"))

# By how much each zero point is stored too low.
_OFFSETS = {"gptq": 1, "gptq_v2": 0}


def decode(module: Module, settings: Mapping[str, Any]) -> ir.TensorProtocol:
    """Return the weight `[N, K]` of a module.

    Args:
        module: Its tensors.
        settings: `quantization_config`.

    Raises:
        CheckpointError: if the tensors are not of this format.
    """
    words = module.require(".qweight", WORDS, 2)
    zeros = module.require(".qzeros", WORDS, 2)
    scales = module.require(".scales", FLOATS, 2)
    groups, n = sizes(scales)
    bits, k = _bits_and_k(module, words, settings)
    group = _group_size(module, k, groups, settings)
    if list(zeros.shape) != [groups, n // per_word(bits)]:
        raise CheckpointError(
            f"{module.name}.qzeros has shape {list(zeros.shape)}; needed: "
            f"{[groups, n // per_word(bits)]}. Does quantization_config belong to this checkpoint?"
        )
    name = f"{module.name}.weight"
    unpack_zeros = functools.partial(_zeros, bits=bits, offset=_offset(settings, module))
    order = _order(module, k, group, settings)
    size = block_size_for(group, k)
    if size is None or not np.array_equal(order, np.arange(k) // group):

        def floats(words: Array, zeros: Array, scales: Array) -> Array:
            integers = unpack_words(np.ascontiguousarray(words.T), bits)[:, :k]
            return dequantized(integers, unpack_zeros(zeros), scales.T, order)

        return float_tensor(name, floats, (words, zeros, scales), (n, k))
    form = BlockFormat(bits, size, symmetric=bool(settings.get("sym", True)))

    def packed(words: Array, zeros: Array) -> Array:
        if form.symmetric:
            require_middle(unpack_zeros(zeros), form, module.name)
        # Bytes of a row's words are the bytes of its integers.
        rows = np.ascontiguousarray(words.T).astype("<i4", copy=False).view(np.uint8)
        return bytes_to_blocks(rows, k, form)

    return block_quantized(
        name,
        form,
        (n, k),
        group,
        packed=(packed, (words, zeros)),
        scales=(np.transpose, scales),
        zeros=(unpack_zeros, zeros),
    )


def _bits_and_k(
    module: Module, words: ir.TensorProtocol, settings: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the width of integers, which may be a module's own, and the length of a row."""
    rows = sizes(words)[0]
    order = module.get(".g_idx")
    bits = settings.get("bits")
    if order is not None and len(order.shape) == 1:
        k = sizes(order)[0]
        bits = 32 * rows // k if k and 32 * rows % k == 0 else bits
    if bits not in BITS:
        raise CheckpointError(
            f"{module.name} has integers of {bits!r} bits; needed: one of {BITS}. Use the "
            "checkpoint that it was quantized from."
        )
    return bits, rows * per_word(bits)


def _group_size(module: Module, k: int, groups: int, settings: Mapping[str, Any]) -> int:
    group = settings.get("group_size", -1)
    if groups == 1:
        return k
    known = isinstance(group, int) and not isinstance(group, bool) and group > 0
    if not known or -(-k // int(group)) != groups:
        raise CheckpointError(
            f"{module.name} has {groups} groups in rows of {k}, and group_size is {group!r}. Does "
            "quantization_config belong to this checkpoint?"
        )
    return int(group)


def _order(module: Module, k: int, group: int, settings: Mapping[str, Any]) -> Array:
    """Return the group of each column; read now, because it decides what the weight becomes."""
    if module.get(".g_idx") is None and not settings.get("desc_act"):
        return np.arange(k) // group
    order = module.require(".g_idx", WORDS, 1).numpy()
    if order.shape != (k,) or order.min() < 0 or order.max() * group >= k:
        raise CheckpointError(
            f"{module.name}.g_idx has {order.size} entries from {order.min()} to {order.max()}; "
            f"needed: one of {-(-k // group)} groups for each of {k} columns. Download it again."
        )
    return order


def _offset(settings: Mapping[str, Any], module: Module) -> int:
    name = settings.get("checkpoint_format") or "gptq"
    if name not in _OFFSETS:
        raise CheckpointError(
            f"{module.name} is stored in the checkpoint_format {name!r}; needed: one of "
            f"{', '.join(map(repr, _OFFSETS))}. Use the checkpoint that it was quantized from."
        )
    return _OFFSETS[name]


def _zeros(words: Array, *, bits: int, offset: int) -> Array:
    """Return zero points `[N, groups]`."""
    # A word at a time: a zero point of 0 has borrowed from the next one.
    ones = sum(1 << place for place in range(0, 32, bits))
    words = np.ascontiguousarray(words, np.int32).view(np.uint32) + np.uint32(offset * ones)
    return unpack_words(words.view(np.int32), bits).T
