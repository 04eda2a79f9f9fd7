"""Mobius: HuggingFace checkpoints to ONNX graphs built for one execution provider."""

from mobius_components import ArchitectureConfig
from mobius_eps import (
    EpCapabilities,
    EpRegistry,
    MobiusError,
    UnknownEpError,
    build_context,
    ep_capabilities,
    ep_registry,
    get_build_dtype,
    get_ep,
    register_ep,
)

from mobius import components, models, tasks
from mobius.__about__ import __version__
from mobius.api import build, build_from_module
from mobius.optimizer import optimize_model
from mobius.package import ModelPackage
from mobius.report import OptimizationReport

__all__ = [
    "ArchitectureConfig",
    "EpCapabilities",
    "EpRegistry",
    "MobiusError",
    "ModelPackage",
    "OptimizationReport",
    "UnknownEpError",
    "__version__",
    "build",
    "build_context",
    "build_from_module",
    "components",
    "ep_capabilities",
    "ep_registry",
    "get_build_dtype",
    "get_ep",
    "models",
    "optimize_model",
    "register_ep",
    "tasks",
]
