"""`random_inputs`: values for the inputs of models, random but such that the models accept them.

A mask is a mask, positions count real tokens, and indices stay below what they index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from mobius.dims import Shape, Sizes, bind
from mobius.errors import VerifyError
from mobius.ort import Array, Port

__all__ = ["Scenario", "coarsest", "index_limits", "random_inputs"]

_DEFAULT_LIMIT = 2
_MOST_STEPS = 8
_KEEPS_VALUES = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_EMBEDDINGS = frozenset({("", "Gather"), ("com.microsoft", "GatherBlockQuantized")})


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One way to run a model.

    Attributes:
        name: What reports call it.
        sizes: Sizes of the dimensions that models leave open.
        padded: Prompts end in padding, each row's in another amount; with a cache, the prompts
            that are in it.
    """

    name: str
    sizes: Sizes
    padded: bool = False

    def mask(self, batch: int) -> Array:
        """Return which tokens are real, int64 `[batch, past + sequence]`."""
        past, sequence = self.sizes.past, self.sizes.sequence
        mask = np.ones((batch, past + sequence), np.int64)
        prompt = past or sequence
        if self.padded:
            for row in range(batch):
                # The first row is whole, and no row is without a real token.
                mask[row, prompt - row % prompt : prompt] = 0
        return mask

    def comparable(self, batch: int) -> Array:
        """Return which slots of a cache hold the same in every layout, as `mask`.

        After a padded prompt the next tokens are behind the padding, or, where attention counts
        real tokens (GroupQueryAttention), take its place.
        """
        mask = self.mask(batch)
        if self.padded and self.sizes.past:
            mask[:, self.sizes.past :] = 0
        return mask


def random_inputs(
    models: Sequence[Sequence[Port]],
    scenario: Scenario,
    limits: Mapping[str, int],
    generator: np.random.Generator,
) -> dict[str, Array]:
    """Return a value for each input of the models, in the coarsest dtype that one of them takes.

    Args:
        models: The inputs of each model.
        scenario: What to run.
        limits: For integer inputs, the number that they stay below.
        generator: Source of all randomness.

    Raises:
        VerifyError: if no value fits all models.
    """
    shapes = bind(models, scenario.sizes)
    dtypes: dict[str, ir.DataType] = {}
    for port in (port for ports in models for port in ports):
        known = dtypes.setdefault(port.name, port.dtype)
        if known is not port.dtype:
            if not (known.is_floating_point() and port.dtype.is_floating_point()):
                raise VerifyError(
                    f"Input {port.name!r} is {known.name} in one model and {port.dtype.name} in "
                    "the other, so no value fits both."
                )
            dtypes[port.name] = coarsest([known, port.dtype])
    # In order of name, so that the order of a model's inputs does not matter.
    return {
        name: _value(name, shapes[name], dtypes[name], scenario, limits.get(name), generator)
        for name in sorted(shapes)
    }


def coarsest(dtypes: Sequence[ir.DataType]) -> ir.DataType:
    """Return the float type with the largest step between numbers near 1; not empty."""
    return max(dtypes, key=lambda dtype: float(_limits(dtype).eps))


def _limits(dtype: ir.DataType) -> Any:
    return ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]


def _value(
    name: str,
    shape: Shape,
    dtype: ir.DataType,
    scenario: Scenario,
    limit: int | None,
    generator: np.random.Generator,
) -> Array:
    array = _special(name, shape, scenario)
    if array is None:
        array = _random(name, shape, dtype, limit, generator)
    elif dtype.is_floating_point() and name.endswith("attention_mask"):
        # As a bias: 0 at real tokens, far below any score elsewhere.
        lowest = float(_limits(dtype).min)
        array = np.where(array == 0, lowest, 0.0)
    return array.astype(dtype.numpy())


def _special(name: str, shape: Shape, scenario: Scenario) -> Array | None:
    """Return the value of an input with a meaning of its own, `None` for any other."""
    past = scenario.sizes.past
    if name.endswith("attention_mask") and "encoder_attention" not in name:
        if len(shape) == 2:
            return _fitted(scenario.mask(shape[0]), shape)
        if len(shape) == 4:
            return _bias_mask(scenario.mask(shape[0]), shape)
    if name.endswith("attention_mask"):
        return np.ones(shape, np.int64)
    if name == "position_ids" and len(shape) in (2, 3):
        mask = scenario.mask(shape[-2])
        positions = np.clip(np.cumsum(mask, axis=1) - 1, 0, None)[:, past:]
        return np.broadcast_to(_fitted(positions, shape[-2:]), shape)
    if name == "cache_position" and len(shape) == 1:
        return np.arange(past, past + shape[0])
    return None


def _fitted(array: Array, shape: Shape) -> Array:
    """Return `array`, repeated or cut where the model fixes another length."""
    if array.shape == shape:
        return array
    return np.resize(array, shape)


def _bias_mask(mask: Array, shape: Shape) -> Array:
    """Return a causal mask of `[batch, heads, sequence, total]` with the padding of `mask`."""
    batch, _, sequence, total = shape
    causal = np.tri(sequence, total, total - sequence, dtype=np.int64)
    padding = _fitted(mask, (batch, total))
    return np.broadcast_to(causal * padding[:, None, None, :], shape)


def _random(
    name: str,
    shape: Shape,
    dtype: ir.DataType,
    limit: int | None,
    generator: np.random.Generator,
) -> Array:
    if dtype is ir.DataType.BOOL:
        return generator.integers(0, 2, shape)
    if dtype.is_integer():
        return generator.integers(0, limit or _DEFAULT_LIMIT, shape)
    if dtype.is_floating_point():
        return generator.standard_normal(shape, dtype=np.float32)
    raise VerifyError(f"Input {name!r} is {dtype.name}, for which there are no random values.")


def index_limits(model: ir.Model) -> dict[str, int]:
    """Return, for each input that a table is looked up with, the number of the table's rows."""
    limits: dict[str, int] = {}
    for value in model.graph.inputs:
        if value.dtype is not None and value.dtype.is_integer():
            found = _rows_looked_up(value, _MOST_STEPS)
            if found:
                limits[str(value.name)] = min(found)
    return limits


def _rows_looked_up(value: ir.Value, steps: int) -> list[int]:
    rows: list[int] = []
    for node, index in value.uses():
        if (node.domain, node.op_type) in _EMBEDDINGS and index == 1:
            table = node.inputs[0]
            axis = node.attributes.get_int("gather_axis" if node.domain else "axis", 0)
            dim = None if table is None or table.shape is None else table.shape[axis]
            if isinstance(dim, int):
                rows.append(dim)
        elif node.op_type in _KEEPS_VALUES and index == 0 and steps:
            rows.extend(_rows_looked_up(node.outputs[0], steps - 1))
    return rows
