"""EP-agnostic components and models: configuration in, standard ONNX graph out."""

from mobius_components.config import ArchitectureConfig, ConfigError
from mobius_components.parameter import Parameter, set_build_dtype

__all__ = ["ArchitectureConfig", "ConfigError", "Parameter", "set_build_dtype"]
