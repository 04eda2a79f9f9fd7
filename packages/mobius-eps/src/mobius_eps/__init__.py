"""What each ONNX execution provider can run, as data, and which one is being built for."""

from mobius_eps.__about__ import __version__
from mobius_eps.capabilities import EpCapabilities
from mobius_eps.context import build_context, ep_capabilities, get_build_dtype
from mobius_eps.errors import (
    EpPluginError,
    EpRegistrationError,
    InvalidCapabilitiesError,
    MobiusError,
    UnknownEpError,
)
from mobius_eps.lack import Lack
from mobius_eps.registry import EpRegistry, ep_registry, get_ep, register_ep
from mobius_eps.runtime_names import RuntimeNames

__all__ = [
    "EpCapabilities",
    "EpPluginError",
    "EpRegistrationError",
    "EpRegistry",
    "InvalidCapabilitiesError",
    "Lack",
    "MobiusError",
    "RuntimeNames",
    "UnknownEpError",
    "__version__",
    "build_context",
    "ep_capabilities",
    "ep_registry",
    "get_build_dtype",
    "get_ep",
    "register_ep",
]
