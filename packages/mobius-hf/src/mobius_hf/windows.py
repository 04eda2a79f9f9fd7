"""Sliding-window fields of a config -> the window, and which layers have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mobius_components.config import FULL_ATTENTION, SLIDING_ATTENTION
from mobius_hf.config import ConfigFields


@dataclasses.dataclass(frozen=True)
class Windows:
    """Attention windows of a model.

    Attributes:
        sliding_window: Tokens that a sliding layer sees, the current one included; `None` if no
            layer slides.
        layer_types: `full_attention` or `sliding_attention` for each layer.
    """

    sliding_window: int | None
    layer_types: tuple[str, ...]


def same_for_all(fields: ConfigFields, window: int | None) -> Windows:
    """Return `window` for every layer; `layer_types`, where a file has it, must say so too.

    Raises:
        CheckpointConfigError: if `layer_types` says otherwise.
    """
    kind = FULL_ATTENTION if window is None else SLIDING_ATTENTION
    layer_types = (kind,) * fields.integer("num_hidden_layers")
    stated = fields.value("layer_types")
    if stated is not None and stated != list(layer_types):
        raise fields.unfit("layer_types", stated, f"{kind!r} for each layer")
    return Windows(window, layer_types)


def switched_by_flag(fields: ConfigFields) -> Windows:
    """Return the windows of a config with `use_sliding_window` (Qwen2, Qwen3).

    `sliding_window` counts only if the flag is set. `layer_types` decides which layers slide; a
    file without it means those from `max_window_layers` on.
    Source: `transformers.Qwen2Config.__post_init__`.

    Raises:
        CheckpointConfigError: if a layer slides but there is no window.
    """
    layers = fields.integer("num_hidden_layers")
    window = fields.optional_integer("sliding_window")
    first = fields.integer("max_window_layers")
    if not fields.flag("use_sliding_window"):
        window = None
    layer_types = fields.value("layer_types")
    if layer_types is None:
        layer_types = [
            SLIDING_ATTENTION if window is not None and layer >= first else FULL_ATTENTION
            for layer in range(layers)
        ]
    _check_attention(fields, layer_types)
    if SLIDING_ATTENTION not in layer_types:
        return Windows(None, tuple(layer_types))
    if window is None:
        raise fields.unfit(
            "layer_types", layer_types, "use_sliding_window and sliding_window where a layer slides"
        )
    return Windows(window, tuple(layer_types))


def _check_attention(fields: ConfigFields, layer_types: Sequence[str]) -> None:
    """Check that layers of a family without other kinds have one of the two that it has."""
    if not {*layer_types} <= {FULL_ATTENTION, SLIDING_ATTENTION}:
        needed = f"{FULL_ATTENTION} or {SLIDING_ATTENTION} for each layer"
        raise fields.unfit("layer_types", layer_types, needed)


def by_layer_types(fields: ConfigFields) -> Windows:
    """Return `sliding_window` for the layers that `layer_types` names (Gemma 2 and later).

    Raises:
        CheckpointConfigError: if there are no layer types, or a layer slides but has no window.
    """
    layer_types = fields.value("layer_types")
    if not isinstance(layer_types, list | tuple):
        raise fields.unfit("layer_types", layer_types, "a list with the type of each layer")
    _check_attention(fields, layer_types)
    window = fields.optional_integer("sliding_window")
    if SLIDING_ATTENTION not in layer_types:
        return Windows(None, tuple(layer_types))
    if window is None:
        raise fields.unfit("sliding_window", None, "a window, because layer_types has sliding")
    return Windows(window, tuple(layer_types))
