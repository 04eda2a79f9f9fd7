"""Layers that models are assembled from."""

from mobius_components.layers.attention import Attention
from mobius_components.layers.context import LayerContext
from mobius_components.layers.decoder import DecoderLayer
from mobius_components.layers.embedding import Embedding
from mobius_components.layers.linear import Linear
from mobius_components.layers.masks import decoder_mask
from mobius_components.layers.mixers import layer_states
from mobius_components.layers.mlp import MLP, GatedMLP
from mobius_components.layers.norm import LayerNorm, RMSNorm
from mobius_components.layers.rotary import RotaryEmbedding, Rotation
from mobius_components.layers.state import KeyValue, LayerState, StateSpec

__all__ = [
    "MLP",
    "Attention",
    "DecoderLayer",
    "Embedding",
    "GatedMLP",
    "KeyValue",
    "LayerContext",
    "LayerNorm",
    "LayerState",
    "Linear",
    "RMSNorm",
    "RotaryEmbedding",
    "Rotation",
    "StateSpec",
    "decoder_mask",
    "layer_states",
]
