"""What a layer carries from one call to the next: names, shapes and types of its states."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import onnx_ir as ir

PAST_LENGTH = "past_sequence_length"
TOTAL_LENGTH = "total_sequence_length"


@dataclasses.dataclass(frozen=True)
class StateSpec:
    """One tensor that a layer takes and gives back, such as the keys of the tokens so far.

    Attributes:
        name: Last part of the names `past_key_values.N.<name>` and `present.N.<name>`.
        shape: Before the call; `PAST_LENGTH` stands where the tensor grows with each token.
        dtype: Element type; `None` for the build's.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: ir.DataType | None = None

    @property
    def grown_shape(self) -> tuple[int | str, ...]:
        """Shape after the call."""
        return tuple(TOTAL_LENGTH if size == PAST_LENGTH else size for size in self.shape)


LayerState = tuple[ir.Value, ...]
"""Values of a layer's states, in the order of their specs; empty for a layer without any."""


class KeyValue(NamedTuple):
    """Keys and values of the tokens so far, `[B, kv_heads, T, head_size]` each."""

    key: ir.Value
    value: ir.Value


def key_value_specs(kv_heads: int, key_size: int, value_size: int) -> tuple[StateSpec, ...]:
    """Return the specs of a `KeyValue`."""
    return (
        StateSpec("key", ("batch", kv_heads, PAST_LENGTH, key_size)),
        StateSpec("value", ("batch", kv_heads, PAST_LENGTH, value_size)),
    )
