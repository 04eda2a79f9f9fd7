"""`build` and `build_from_module`: a model's name, or a module, in; `ModelPackage` out."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir
from onnxscript import nn

from mobius.dtypes import DTYPE_NAMES, parse_dtype, short_name
from mobius.opsets import parse_opset
from mobius.optimizer import optimize_model
from mobius.package import ModelPackage
from mobius.padding import PaddingSide, parse_padding_side
from mobius.quantization import (
    Floats,
    Quantization,
    QuantizationConfig,
    parse_quantization,
)
from mobius.sources import Progress, SourceOptions, open_model
from mobius.stored_quantization import stored_quantization
from mobius.tasks import TASKS, CausalLMTask, Task, UnknownTaskError
from mobius_components import ArchitectureConfig
from mobius_eps import EpCapabilities, MobiusError, build_context, get_ep

DEFAULT_TASK = "text-generation"


class ConfigMismatchError(MobiusError, ValueError):
    """A module was made from another configuration than the one that is given with it."""


class TaskOptionError(MobiusError, ValueError):
    """A task does not have the option that was given."""


class UnsupportedDtypeError(MobiusError, ValueError):
    """The execution provider has no kernels for the dtype."""

    def __init__(self, capabilities: EpCapabilities, dtype: ir.DataType) -> None:
        runs = ", ".join(short_name(each) for each in DTYPE_NAMES if each in capabilities.dtypes)
        super().__init__(
            f"Execution provider {capabilities.name!r} does not run {short_name(dtype)}; it runs "
            f"{runs}. Choose one of them, or another execution provider."
        )


def build(
    model: str | Path,
    *,
    execution_provider: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    task: str | Task | None = None,
    opset: int | None = None,
    padding_side: str = PaddingSide.RIGHT,
    quantize: str | Quantization | None = None,
    last_token_logits: bool | None = False,
    load_weights: bool = True,
    text_only: bool = False,
    trace_optimization: bool = False,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    trust_remote_code: bool = False,
    source: str | None = None,
) -> ModelPackage:
    """Build the graphs of a checkpoint for one execution provider.

    Args:
        model: A HuggingFace hub id, a local folder in HuggingFace layout, a `.gguf` file, or one on
            the hub as `owner/name/file.gguf`.
        execution_provider: Name of a registered EP, or its capabilities.
        dtype: Element type of weights and activations (`"f16"`, `ir.DataType.FLOAT16`, ...);
            `None` means the checkpoint's own where the EP runs it, float32 where it does not, with
            a warning where the EP fuses attention in other dtypes only.
        task: Key of `mobius.tasks.TASKS`, or a task; `None` means the one that the source knows.
        opset: Newest opset that the graphs may be in, from 17 to 24; `None` for the newest that
            the EP runs.
        padding_side: Where the rows of a batch are padded, `"right"` or `"left"`. Graphs with
            `GroupQueryAttention` are right for right padding alone unless they are built for left
            padding; the manifest says which rows a package takes.
        quantize: Makes weights of products integers, rounded to nearest while the package is
            saved: `"int4"`, `"int8"`, or a `QuantizationConfig`. `None` keeps the integers of a
            checkpoint that is quantized already, `"float"` makes them floats.
        last_token_logits: Make the logits of each row's last token only, `[batch, 1, vocab_size]`:
            what generating text needs, and a prompt is read faster. Not for measuring how likely a
            text is. `None` makes them where onnxruntime-genai knows the EP, for it reads no more.
        load_weights: Bind the checkpoint's tensors (they stay on disk until the package is saved).
        text_only: Build the language model of a checkpoint for images or sound too, and leave out
            its other parts.
        trace_optimization: Log what each optimisation did on the logger `mobius._optimizations`.
        revision: Branch, tag or commit on the hub.
        token: Hub access token.
        cache_dir: Folder for downloaded files.
        offline: Never touch the network.
        progress: Called while files are downloaded with bytes done, bytes in total as far as it is
            known, and the name of a file. Without it the hub library draws its own bars.
        trust_remote_code: Accepted as transformers has it. Mobius never runs the Python code of a
            checkpoint: a model type that it does not know is an error either way.
        source: Entry point of the group `mobius.sources` that opens the model; `None` for the one
            that claims the model, HuggingFace's where none does.

    Raises:
        ValueError: for an unknown EP, dtype, task, opset or padding side, before anything is
            downloaded.
        MobiusError: for whatever is wrong with the checkpoint.
    """
    if not isinstance(model, str | Path) or not str(model):
        raise TypeError(f"model is {model!r}; needed: a hub id, or the path of a folder")
    capabilities = _capabilities(execution_provider)
    requested = None if dtype is None else _checked_dtype(dtype, capabilities)
    parse_opset(opset)
    side = parse_padding_side(padding_side)
    quantization = parse_quantization(quantize)
    if task is not None:
        _find_task(task, last_token_logits, capabilities)
    options = SourceOptions(
        revision=revision,
        token=token,
        cache_dir=None if cache_dir is None else Path(cache_dir),
        offline=offline,
        trust_remote_code=trust_remote_code,
        text_only=text_only,
        progress=progress,
    )
    opened = open_model(str(model), options, source=source)
    tensors = opened.load_weights() if load_weights else None
    if quantization is None:
        # As the checkpoint has it.
        quantization = opened.quantization if tensors is None else stored_quantization(tensors)
    if requested is None:
        requested = _default_dtype(opened.config, capabilities)
        _warn_of_slow_dtype(opened.config.dtype, requested, capabilities)
    package = _build(
        opened.make_module(),
        opened.config,
        capabilities,
        requested,
        _find_task(task or opened.task, last_token_logits, capabilities),
        opset=opset,
        padding_side=side,
        quantization=quantization,
        trace=trace_optimization,
    )
    package = package.with_source(
        name=opened.name,
        revision=opened.revision,
        files=opened.files,
        texts=opened.texts,
        generation=opened.generation,
    )
    if tensors is not None:
        package.apply_weights(tensors)
    return package


def build_from_module(
    module: nn.Module,
    config: ArchitectureConfig,
    *,
    execution_provider: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    task: str | Task = DEFAULT_TASK,
    opset: int | None = None,
    padding_side: str = PaddingSide.RIGHT,
    quantize: str | Quantization | None = None,
    last_token_logits: bool | None = False,
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
        padding_side: As for `build`.
        quantize: As for `build`.
        last_token_logits: As for `build`.
        weights: Tensor for each parameter name; `None` builds the graphs without weights.
        trace_optimization: Log what each optimisation did.

    Raises:
        ValueError: for an unknown EP, dtype, task, opset or padding side.
    """
    _check_own_config(module, config)
    capabilities = _capabilities(execution_provider)
    parse_opset(opset)
    side = parse_padding_side(padding_side)
    quantization = parse_quantization(quantize)
    if quantization is None and weights is not None:
        quantization = stored_quantization(weights)
    resolved = (
        _default_dtype(config, capabilities)
        if dtype is None
        else _checked_dtype(dtype, capabilities)
    )
    package = _build(
        module,
        config,
        capabilities,
        resolved,
        _find_task(task, last_token_logits, capabilities),
        opset=opset,
        padding_side=side,
        quantization=quantization,
        trace=trace_optimization,
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
    *,
    opset: int | None,
    padding_side: PaddingSide,
    quantization: Quantization | None,
    trace: bool,
) -> ModelPackage:
    if isinstance(quantization, Floats):
        quantization = None
    with build_context(capabilities, dtype):
        package = task.build(module, config)
    if isinstance(quantization, QuantizationConfig):
        quantization.check_exclude(package.parameters())
    reports = {
        key: optimize_model(
            model,
            ep=capabilities,
            dtype=dtype,
            role=package.roles[key],
            opset=opset,
            padding_side=padding_side,
            quantize=quantization,
            trace=trace,
        )
        for key, model in package.items()
    }
    return package.with_build(
        ep=capabilities, dtype=dtype, reports=reports, quantization=quantization
    )


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


def _warn_of_slow_dtype(own: ir.DataType, dtype: ir.DataType, capabilities: EpCapabilities) -> None:
    """Warn of a dtype that nobody asked for, if the target fuses attention in others only."""
    fused = [short_name(each) for each in DTYPE_NAMES if each in capabilities.gqa_dtypes]
    if not fused or dtype in capabilities.gqa_dtypes:
        return
    ep, built = capabilities.name, short_name(dtype)
    why = "as the checkpoint is" if own is dtype else f"for {ep} does not run {short_name(own)}"
    warnings.warn(
        f"The package is built in {built}, {why}, and {ep} fuses attention in "
        f"{' and '.join(fused)} only. dtype={fused[0]!r} (--dtype {fused[0]}) makes it smaller and "
        f"faster; dtype={built!r} says that it is meant to be so.",
        UserWarning,
        stacklevel=3,
    )


def _find_task(
    task: str | Task, last_token_logits: bool | None, capabilities: EpCapabilities
) -> Task:
    found = TASKS.get(task) if isinstance(task, str) else task
    if found is None:
        raise UnknownTaskError(str(task), tuple(TASKS))
    if last_token_logits is None:
        known = capabilities.runtime_names.genai is not None
        last_token_logits = known and isinstance(found, CausalLMTask)
    if not last_token_logits:
        return found
    if not isinstance(found, CausalLMTask):
        raise TaskOptionError(
            f"last_token_logits is an option of the task 'text-generation', not of {task!r}."
        )
    return dataclasses.replace(found, last_token_logits=True)
