"""Layers that models are assembled from."""

from mobius_components.layers.attention import Attention, KeyValue
from mobius_components.layers.decoder import DecoderLayer
from mobius_components.layers.embedding import Embedding
from mobius_components.layers.linear import Linear
from mobius_components.layers.masks import decoder_mask
from mobius_components.layers.mlp import MLP, GatedMLP
from mobius_components.layers.norm import LayerNorm, RMSNorm
from mobius_components.layers.rotary import RotaryEmbedding, Rotation

__all__ = [
    "MLP",
    "Attention",
    "DecoderLayer",
    "Embedding",
    "GatedMLP",
    "KeyValue",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "RotaryEmbedding",
    "Rotation",
    "decoder_mask",
]
