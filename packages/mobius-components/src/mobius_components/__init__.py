"""EP-agnostic components and models: configuration in, standard ONNX graph out."""

from mobius_components.config import ArchitectureConfig
from mobius_components.config_error import ConfigError
from mobius_components.linear_attention_config import (
    GatedDeltaConfig,
    RgLruConfig,
    ShortConvConfig,
)
from mobius_components.mixture_config import MixtureConfig, RouterConfig
from mobius_components.multiplier_config import MultiplierConfig
from mobius_components.parameter import Parameter, set_build_dtype
from mobius_components.shared_block_config import SharedBlockConfig
from mobius_components.state_space_config import Mamba2Config, MambaConfig

__all__ = [
    "ArchitectureConfig",
    "ConfigError",
    "GatedDeltaConfig",
    "Mamba2Config",
    "MambaConfig",
    "MixtureConfig",
    "MultiplierConfig",
    "Parameter",
    "RgLruConfig",
    "RouterConfig",
    "SharedBlockConfig",
    "ShortConvConfig",
    "set_build_dtype",
]
