"""Bind a checkpoint's tensors to parameters: strict both ways, and nothing is read from disk."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from mobius.errors import NonFiniteTensor, WeightsError
from mobius.finite import count_non_finite
from mobius.stored_quantization import as_quantized
from mobius.streaming import WeightTensor, in_file, visit_chunks
from mobius_ir_rules.lazy import DerivedTensor

__all__ = ["bind_weights", "collect_parameters", "explain_non_finite"]

Parameters = Mapping[str, Sequence[ir.Value]]

_LISTED = 20


def collect_parameters(models: Iterable[ir.Model]) -> dict[str, tuple[ir.Value, ...]]:
    """Return the values that a checkpoint must fill, by name.

    These are the initializers without data, and the unfilled leaves of derived ones. A name that
    occurs in several models has one value for each.
    """
    found: dict[str, dict[ir.Value, None]] = {}
    for model in models:
        for graph in model.graphs():
            for value in graph.initializers.values():
                for leaf in _leaves(value):
                    if leaf.const_value is None:
                        found.setdefault(leaf.name or "", {})[leaf] = None
    return {name: tuple(values) for name, values in found.items()}


def bind_weights(parameters: Parameters, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Give each parameter the tensor of its name, cast to the parameter's dtype when it is read.

    Args:
        parameters: From `collect_parameters`.
        tensors: One tensor for each parameter, of the same shape. Not read here.

    Raises:
        WeightsError: listing all missing, left-over and mismatched tensors, with nothing changed.
    """
    missing = [name for name in parameters if name not in tensors]
    left_over = [name for name in tensors if name not in parameters]
    mismatched = {
        name: reason
        for name, values in parameters.items()
        if name in tensors and (reason := _mismatch(values, tensors[name])) is not None
    }
    if missing or left_over or mismatched:
        raise _strictness_error(parameters, tensors, missing, left_over, mismatched)
    # Keyed by tensor, so that parameters that share a tensor still share it after the cast.
    bound: dict[tuple[int, ir.DataType], ir.TensorProtocol] = {}
    for name, values in parameters.items():
        tensor = tensors[name]
        for value in values:
            dtype = value.dtype or tensor.dtype
            key = (id(tensor), dtype)
            if key not in bound and (quantized := as_quantized(tensor)) is not None:
                bound[key] = quantized.with_dtype(dtype)
            elif key not in bound:
                direct = tensor.dtype is dtype and in_file(tensor) is None
                bound[key] = tensor if direct else WeightTensor(tensor, dtype)
            value.const_value = bound[key]


def explain_non_finite(name: str, tensor: ir.TensorProtocol, count: int) -> list[NonFiniteTensor]:
    """Say which checkpoint tensors the `count` bad values of a written tensor come from.

    Args:
        name: Initializer that was written.
        tensor: Its tensor, with `count` values that are NaN or infinite.
        count: How many.

    Returns:
        The weights that `tensor` was computed from and that have bad values of their own; the
        tensor itself where none has, so that the list is never empty.
    """
    if isinstance(tensor, DerivedTensor):
        found = [
            report
            for leaf in tensor.leaves
            if leaf.const_value is not None and (bad := _count_non_finite(leaf.const_value))
            for report in explain_non_finite(leaf.name or "", leaf.const_value, bad)
        ]
        return found or [NonFiniteTensor(name, not_finite=0, overflowed=count)]
    if isinstance(tensor, WeightTensor):
        before = _count_non_finite(tensor.source)
        return [NonFiniteTensor(name, not_finite=before, overflowed=count - before)]
    return [NonFiniteTensor(name, not_finite=count, overflowed=0)]


def _count_non_finite(tensor: ir.TensorProtocol) -> int:
    counts: list[int] = []
    visit_chunks(tensor, lambda chunk: counts.append(count_non_finite(chunk)))
    return sum(counts)


def _leaves(value: ir.Value) -> Sequence[ir.Value]:
    tensor = value.const_value
    return tensor.leaves if isinstance(tensor, DerivedTensor) else (value,)


def _mismatch(values: Sequence[ir.Value], tensor: ir.TensorProtocol) -> str | None:
    for value in values:
        needed, given = value.shape, list(tensor.shape)
        if needed is not None and list(needed) != given:
            return f"shape {given}, needs {list(needed)}"
        dtype = value.dtype or tensor.dtype
        castable = dtype.is_floating_point() and tensor.dtype.is_floating_point()
        if dtype is not tensor.dtype and not castable:
            return f"dtype {tensor.dtype.name}, needs {dtype.name}"
    return None


def _strictness_error(
    parameters: Parameters,
    tensors: Mapping[str, ir.TensorProtocol],
    missing: list[str],
    left_over: list[str],
    mismatched: Mapping[str, str],
) -> WeightsError:
    # A tensor under a wrong name is both missing and left over: look there first.
    lines = [
        *_listing("missing", missing, left_over or list(tensors)),
        *_listing("left over", left_over, missing or list(parameters)),
        *_listing("mismatched", [f"{name}: {why}" for name, why in mismatched.items()], []),
    ]
    return WeightsError(
        f"The tensors do not fit the model: {len(missing)} missing, {len(left_over)} left over, "
        f"{len(mismatched)} mismatched. Nothing was loaded.\n" + "\n".join(lines),
        missing=missing,
        left_over=left_over,
        mismatched=list(mismatched),
    )


def _listing(kind: str, names: list[str], candidates: list[str]) -> list[str]:
    lines = []
    for name in names[:_LISTED]:
        nearest = difflib.get_close_matches(name, candidates, n=1)
        lines.append(f"  {kind}: {name}" + (f" (nearest: {nearest[0]})" if nearest else ""))
    if len(names) > _LISTED:
        lines.append(f"  {kind}: and {len(names) - _LISTED} more")
    return lines
