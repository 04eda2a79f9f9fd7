"""Components by their public name: `mobius.components.Linear` and the like."""

from mobius_components import Parameter
from mobius_components.layers import (
    MLP,
    Attention,
    DecoderLayer,
    Embedding,
    GatedMLP,
    KeyValue,
    LayerNorm,
    Linear,
    RMSNorm,
    RotaryEmbedding,
    Rotation,
    decoder_mask,
)

__all__ = [
    "MLP",
    "Attention",
    "DecoderLayer",
    "Embedding",
    "GatedMLP",
    "KeyValue",
    "LayerNorm",
    "Linear",
    "Parameter",
    "RMSNorm",
    "RotaryEmbedding",
    "Rotation",
    "decoder_mask",
]
