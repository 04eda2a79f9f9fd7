"""`LayerContext`: what a layer is told beside the residual stream and its state."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from mobius_components.layers.rotary import Rotation


@dataclasses.dataclass(frozen=True)
class LayerContext:
    """The tokens of a call, and what follows from them for one layer.

    Attributes:
        attention_mask: int64 `[B, T]`, 1 for a real token, `T` being past and present together.
        position_ids: int64 `[B, S]`, index of each token among the real ones of its row.
        mask: bool `[B, 1, S, T]`, true where a query may see a key; or what is added to the
            scores, `[B, heads, S, T]`. `None` where no layer like this one attends.
        rotation: Rotary embedding of the layer, or `None` for none.
    """

    attention_mask: ir.Value
    position_ids: ir.Value
    mask: ir.Value | None
    rotation: Rotation | None
