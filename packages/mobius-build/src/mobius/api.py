"""`build` and `build_from_module`: a model's name, or a module, in; `ModelPackage` out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
from onnxscript import nn

from mobius.dtypes import parse_dtype
from mobius.opsets import parse_opset
from mobius.optimizer import optimize_model
from mobius.package import ModelPackage
from mobius.sources import SourceOptions, open_model
from mobius.tasks import TASKS, Task, UnknownTaskError
from mobius_components import ArchitectureConfig
from mobius_eps import EpCapabilities, MobiusError, build_context, get_ep

DEFAULT_TASK = "text-generation"


class ConfigMismatchError(MobiusError, ValueError):
    """A module was made from another configuration than the one that is given with it."""


class UnsupportedDtypeError(MobiusError, ValueError):
    """The execution provider has no kernels for the dtype."""

    def __init__(self, capabilities: EpCapabilities, dtype: ir.DataType) -> None:
        runs = ", ".join(sorted(each.name for each in capabilities.dtypes))
        super().__init__(
            f"Execution provider {capabilities.name!r} does not run {dtype.name}; it runs {runs}. "
            "Choose one of them, or another execution provider."
        )


def build(
    model: str | Path,
    *,
    execution_provider: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    task: str | Task | None = None,
    opset: int | None = None,
    load_weights: bool = True,
    trace_optimization: bool = False,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    source: str = "huggingface",
) -> ModelPackage:
    """Build the graphs of a checkpoint for one execution provider.

    Args:
        model: A HuggingFace hub id, or a local folder in HuggingFace layout.
        execution_provider: Name of a registered EP, or its capabilities.
        dtype: Element type of weights and activations (`"f16"`, `ir.DataType.FLOAT16`, ...);
            `None` means the checkpoint's own where the EP runs it, float32 where it does not.
        task: Key of `mobius.tasks.TASKS`, or a task; `None` means the one that the source knows.
        opset: Newest opset that the graphs may be in, from 17 to 24; `None` for the newest that
            the EP runs.
        load_weights: Bind the checkpoint's tensors (they stay on disk until the package is saved).
        trace_optimization: Log what each optimisation did on the logger `mobius._optimizations`.
        revision: Branch, tag or commit on the hub.
        token: Hub access token.
        cache_dir: Folder for downloaded files.
        offline: Never touch the network.
        trust_remote_code: Accepted as transformers has it. Mobius never runs the Python code of a
            checkpoint: a model type that it does not know is an error either way.
        source: Entry point of the group `mobius.sources` that opens the model.

    Raises:
        ValueError: for an unknown EP, dtype, task or opset, before anything is downloaded.
        MobiusError: for whatever is wrong with the checkpoint.
    """
    if not isinstance(model, str | Path) or not str(model):
        raise TypeError(f"model is {model!r}; needed: a hub id, or the path of a folder")
    capabilities = _capabilities(execution_provider)
    requested = None if dtype is None else _checked_dtype(dtype, capabilities)
    parse_opset(opset)
    if task is not None:
        _find_task(task)
    options = SourceOptions(
        revision=revision,
        token=token,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        offline=offline,
        trust_remote_code=trust_remote_code,
    )
    opened = open_model(str(model), options, source=source)
    package = _build(
        opened.make_module(),
        opened.config,
        capabilities,
        requested or _default_dtype(opened.config, capabilities),
        _find_task(task or opened.task),
        opset,
        trace_optimization,
    )
    package = package.with_source(name=opened.name, revision=opened.revision, files=opened.files)
    if load_weights:
        package.apply_weights(opened.load_weights())
    return package


def build_from_module(
    module: nn.Module,
    config: ArchitectureConfig,
    *,
    execution_provider: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    task: str | Task = DEFAULT_TASK,
    opset: int | None = None,
    weights: Mapping[str, ir.TensorProtocol] | None = None,
    trace_optimization: bool = False,
) -> ModelPackage:
    """Build the graphs of a module for one execution provider.

    Args:
        module: The model, for instance `CausalLMModel(config)`. It is not changed.
        config: Its architecture.
        execution_provider: Name of a registered EP, or its capabilities.
        dtype: Element type of weights and activations; `None` as for `build`.
        task: Key of `mobius.tasks.TASKS`, or a task.
        opset: Newest opset that the graphs may be in, from 17 to 24; `None` as for `build`.
        weights: Tensor for each parameter name; `None` builds the graphs without weights.
        trace_optimization: Log what each optimisation did.

    Raises:
        ValueError: for an unknown EP, dtype, task or opset.
    """
    _check_own_config(module, config)
    capabilities = _capabilities(execution_provider)
    parse_opset(opset)
    resolved = (
        _default_dtype(config, capabilities)
        if dtype is None
        else _checked_dtype(dtype, capabilities)
    )
    package = _build(
        module, config, capabilities, resolved, _find_task(task), opset, trace_optimization
    )
    if weights is not None:
        package.apply_weights(weights)
    return package


def _build(
    module: nn.Module,
    config: ArchitectureConfig,
    capabilities: EpCapabilities,
    dtype: ir.DataType,
    task: Task,
    opset: int | None,
    trace: bool,
) -> ModelPackage:
    with build_context(capabilities, dtype):
        package = task.build(module, config)
    reports = {
        key: optimize_model(
            model,
            ep=capabilities,
            dtype=dtype,
            role=package.roles[key],
            opset=opset,
            trace=trace,
        )
        for key, model in package.items()
    }
    return package.with_build(ep=capabilities, dtype=dtype, reports=reports)


def _check_own_config(module: nn.Module, config: ArchitectureConfig) -> None:
    own = getattr(module, "config", config)
    if not isinstance(own, ArchitectureConfig) or own == config:
        return
    changed = [
        f"{field.name} ({getattr(own, field.name)!r} in the module, "
        f"{getattr(config, field.name)!r} given)"
        for field in dataclasses.fields(config)
        if getattr(own, field.name) != getattr(config, field.name)
    ]
    raise ConfigMismatchError(
        f"The module was made from another configuration: {', '.join(changed)}. Give "
        "build_from_module the configuration that the module was made from."
    )


def _capabilities(execution_provider: str | EpCapabilities) -> EpCapabilities:
    if isinstance(execution_provider, EpCapabilities):
        return execution_provider
    return get_ep(execution_provider)


def _checked_dtype(dtype: str | ir.DataType, capabilities: EpCapabilities) -> ir.DataType:
    parsed = parse_dtype(dtype)
    if parsed not in capabilities.dtypes:
        raise UnsupportedDtypeError(capabilities, parsed)
    return parsed


def _default_dtype(config: ArchitectureConfig, capabilities: EpCapabilities) -> ir.DataType:
    """Return the checkpoint's dtype where the EP runs it, float32 where it does not."""
    return config.dtype if config.dtype in capabilities.dtypes else ir.DataType.FLOAT


def _find_task(task: str | Task) -> Task:
    if not isinstance(task, str):
        return task
    found = TASKS.get(task)
    if found is None:
        raise UnknownTaskError(task, tuple(TASKS))
    return found
