"""Changes that llama.cpp's converter makes in tensors, the other way round; all of them lazy.

Source of what is changed: llama.cpp, `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.gguf.family import Facts, Joined, Restore
from mobius_hf.transforms import leaf
from mobius_ir_rules.lazy import Concat, DerivedTensor, Expression, Reshape, Slice, Transpose

Numbers = npt.NDArray[np.float32]


def in_halves(key: str) -> Restore:
    """Return what brings rows [heads, size/2, 2] to [heads, 2, size/2]: rotated halves, not pairs.

    Source: `LlamaModel.permute`, which does the opposite.

    Args:
        key: Where the number of heads is.
    """

    def restore(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
        rows, *rest = tensor.shape.numpy()
        heads = facts.largest(key if key in facts.values else "attention.head_count")
        if rows % (2 * heads):
            raise CheckpointError(
                f"The tensor {tensor.name!r} has {rows} rows, which are not {heads} heads of an "
                "even width. Do the metadata belong to these tensors?"
            )
        pairs = Reshape(leaf(tensor), (heads, rows // heads // 2, 2, *rest))
        axes = (0, 2, 1, *range(3, 3 + len(rest)))
        return DerivedTensor(Reshape(Transpose(pairs, axes), (rows, *rest)), tensor.name)

    return restore


PERMUTED: dict[str, Restore] = {
    "attn_q": in_halves("attention.head_count"),
    "attn_k": in_halves("attention.head_count_kv"),
}


def grouped(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
    """Return query, key and value, one after the other, as groups of a key head and its queries.

    Source: `FalconModel`, `BloomModel` and `GPTNeoXModel`, which do the opposite.
    """
    heads = facts.largest("attention.head_count")
    keys = int(facts.values.get("attention.head_count_kv", heads))
    rows, *rest = tensor.shape.numpy()
    if rows % (heads + 2 * keys) or heads % keys:
        raise CheckpointError(
            f"The tensor {tensor.name!r} has {rows} rows, which are not queries of {heads} heads "
            f"with {keys} keys and values. Do the metadata belong to these tensors?"
        )
    size, source = rows // (heads + 2 * keys), leaf(tensor)
    bounds = (0, heads * size, (heads + keys) * size, rows)
    parts = tuple(
        Reshape(_rows(source, start, stop), (keys, (stop - start) // keys, *rest))
        for start, stop in itertools.pairwise(bounds)
    )
    return DerivedTensor(Reshape(Concat(parts, 1), (rows, *rest)), tensor.name)


def transposed(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
    """Return a matrix, or a stack of them, as `[..., in, out]`."""
    del facts
    *stacked, rows, columns = range(len(tensor.shape.numpy()))
    return DerivedTensor(Transpose(leaf(tensor), (*stacked, columns, rows)), tensor.name)


def _reshaped(shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Restore:
    def restore(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
        del facts
        found = tuple(map(int, tensor.shape.numpy()))
        return DerivedTensor(Reshape(leaf(tensor), shape(found)), tensor.name)

    return restore


flat = _reshaped(lambda shape: (math.prod(shape),))
"""Returns a vector that is stored as a matrix."""
as_row = _reshaped(lambda shape: (1, math.prod(shape)))
"""Returns a matrix of one row, which may be stored as a vector."""
per_channel = _reshaped(lambda shape: (shape[0], 1, math.prod(shape[1:])))
"""Returns the filters of a depthwise convolution, `[channels, 1, taps]`."""


def less_one(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
    """Return a norm's weight as its distance from one, float32."""
    del facts
    return _computed(tensor, lambda numbers: numbers - np.float32(1))


def log_of_negative(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
    """Return the logarithm of what is stored negative, float32: how fast a state forgets."""
    del facts
    return _computed(tensor, lambda numbers: np.log(-numbers))


def one_after_the_other(*restores: Restore) -> Restore:
    """Return what does one change, then the next."""

    def restore(tensor: ir.TensorProtocol, facts: Facts) -> ir.TensorProtocol:
        for each in restores:
            tensor = each(tensor, facts)
        return tensor

    return restore


def less_one_of(*parts: str) -> dict[str, Restore]:
    """Return that the weights of these norms have one added."""
    return {f"{part}.weight": less_one for part in parts}


def rows_joined(parts: tuple[Expression, ...]) -> Expression:
    """Return matrices `[..., rows, columns]` with the rows of one after those of the other."""
    return parts[0] if len(parts) == 1 else Concat(parts, len(parts[0].shape) - 2)


EXPERTS = {
    "mlp.experts.gate_up_proj": Joined(("ffn_gate_exps.weight", "ffn_up_exps.weight"), rows_joined),
    "mlp.experts.down_proj": Joined(("ffn_down_exps.weight",), rows_joined),
}
"""Experts with a gate, each matrix `[experts, rows, columns]`."""


def _computed(
    tensor: ir.TensorProtocol, compute: Callable[[Numbers], Numbers]
) -> ir.TensorProtocol:
    def evaluate() -> ir.TensorProtocol:
        return ir.tensor(compute(tensor.numpy().astype(np.float32)))

    shape = ir.Shape(tensor.shape.numpy())
    return ir.LazyTensor(evaluate, ir.DataType.FLOAT, shape, name=tensor.name)


def _rows(source: Expression, start: int, stop: int) -> Slice:
    return Slice(source, (slice(start, stop), *(slice(None),) * (len(source.shape) - 1)))
