"""`LayerContext`: what a layer is told beside the residual stream and its state."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from mobius_components.layers.rotary import Rotation
from mobius_components.layers.state import KeyValue
from mobius_components.layers.token_order import TokenOrder


@dataclasses.dataclass(frozen=True)
class LayerContext:
    """The tokens of a call, and what follows from them for one layer.

    Attributes:
        attention_mask: int64 `[B, T]`, 1 for a real token, `T` being past and present together.
        position_ids: int64 `[B, S]`, index of each token among the real ones of its row.
        mask: bool `[B, 1, S, T]`, true where a query may see a key; or what is added to the
            scores, `[B, heads, S, T]`. `None` where no layer like this one attends.
        rotation: Rotary embedding of the layer, or `None` for none.
        temperature: Factor of the layer's queries, `[B, S, 1]`, or `None` for none.
        shared: Keys and values of the layer that this one reads them from, `None` where it has its
            own: `[B, kv_heads, T, head_size]` each.
        layer_input: What the layer is given beside the stream, `[B, S, width]`, if anything.
        order: Order of tokens that mixers with a state need; `None` where no layer has one.
        embedded: The embedded tokens, `[B, S, hidden]`, what the first layer is given.
    """

    attention_mask: ir.Value
    position_ids: ir.Value
    mask: ir.Value | None
    rotation: Rotation | None
    temperature: ir.Value | None = None
    shared: KeyValue | None = None
    layer_input: ir.Value | None = None
    order: TokenOrder | None = None
    embedded: ir.Value | None = None

    @property
    def tokens(self) -> TokenOrder:
        """The order of tokens, of a model that has one."""
        assert self.order is not None  # a model with a layer that asks has one
        return self.order
