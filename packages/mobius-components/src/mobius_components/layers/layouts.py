"""`LAYOUTS`: the decoder layer of each `ArchitectureConfig.layer_layout`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mobius_components.layers.decoder import (
    DecoderLayer,
    NormAfterAddLayer,
    NormedStreamLayer,
    ParallelLayer,
    ParallelTwoNormsLayer,
    PostNormLayer,
    SandwichLayer,
    SingleLayer,
)
from mobius_components.layers.gemma3n import Gemma3nLayer
from mobius_components.layers.gemma4 import Gemma4Layer

LAYOUTS: Mapping[str, type[DecoderLayer]] = MappingProxyType(
    {
        "pre_norm": DecoderLayer,
        "post_norm": PostNormLayer,
        "norm_after_add": NormAfterAddLayer,
        "sandwich": SandwichLayer,
        "parallel": ParallelLayer,
        "parallel_two_norms": ParallelTwoNormsLayer,
        "single": SingleLayer,
        "normed_stream": NormedStreamLayer,
        "gemma3n": Gemma3nLayer,
        "gemma4": Gemma4Layer,
    }
)
"""One for each of `mobius_components.config.LAYER_LAYOUTS`."""
