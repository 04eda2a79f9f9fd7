"""Mobius: HuggingFace checkpoints to ONNX graphs built for one execution provider.

A name is imported when it is first used, so that `mobius --help` need not wait for onnx.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mobius.__about__ import __version__

if TYPE_CHECKING:
    from mobius import components, models, tasks
    from mobius.api import build, build_from_module
    from mobius.optimizer import optimize_model
    from mobius.package import ModelPackage
    from mobius.pipeline import plan
    from mobius.quantization import QuantizationConfig
    from mobius.report import OptimizationReport
    from mobius_components import ArchitectureConfig
    from mobius_eps import (
        EpCapabilities,
        EpRegistry,
        Lack,
        MobiusError,
        RuntimeNames,
        UnknownEpError,
        build_context,
        ep_capabilities,
        ep_registry,
        get_build_dtype,
        get_ep,
        register_ep,
    )

__all__ = [
    "ArchitectureConfig",
    "EpCapabilities",
    "EpRegistry",
    "Lack",
    "MobiusError",
    "ModelPackage",
    "OptimizationReport",
    "QuantizationConfig",
    "RuntimeNames",
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
    "plan",
    "register_ep",
    "tasks",
]

_HOMES = {
    "ArchitectureConfig": "mobius_components",
    "EpCapabilities": "mobius_eps",
    "EpRegistry": "mobius_eps",
    "Lack": "mobius_eps",
    "MobiusError": "mobius_eps",
    "ModelPackage": "mobius.package",
    "OptimizationReport": "mobius.report",
    "QuantizationConfig": "mobius.quantization",
    "RuntimeNames": "mobius_eps",
    "UnknownEpError": "mobius_eps",
    "build": "mobius.api",
    "build_context": "mobius_eps",
    "build_from_module": "mobius.api",
    "components": "mobius.components",
    "ep_capabilities": "mobius_eps",
    "ep_registry": "mobius_eps",
    "get_build_dtype": "mobius_eps",
    "get_ep": "mobius_eps",
    "models": "mobius.models",
    "optimize_model": "mobius.optimizer",
    "plan": "mobius.pipeline",
    "register_ep": "mobius_eps",
    "tasks": "mobius.tasks",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
