"""`quantization_config` -> how the tensors of a checkpoint are read: one row a method.

A method is decided by `quant_method`, and for some by a field beside it. What is in no row is
refused with its name: a wrong reading gives a model that talks nonsense.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from mobius_hf.errors import CheckpointError
from mobius_hf.quantized import awq, compressed, fp4, fp8, gptq
from mobius_hf.quantized.modules import Layout, Module, group_tensors

__all__ = ["METHODS", "Method", "decode_checkpoint", "find_method", "method_name"]

Tensors = Mapping[str, ir.TensorProtocol]


@dataclasses.dataclass(frozen=True)
class Method:
    """How a method's tensors are read.

    Attributes:
        layout: What they are called.
        decode: Module and `quantization_config` -> the module's weight.
    """

    layout: Layout
    decode: Callable[[Module, Mapping[str, Any]], ir.TensorProtocol]


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "gptq": Method(gptq.LAYOUT, gptq.decode),
        "awq": Method(awq.LAYOUT, awq.decode),
        "compressed-tensors": Method(compressed.LAYOUT, compressed.decode),
        "fp8": Method(fp8.LAYOUT, fp8.decode),
        "mxfp4": Method(fp4.MXFP4_LAYOUT, fp4.decode_mxfp4),
        "modelopt FP8": Method(fp8.LAYOUT, fp8.decode),
        "modelopt NVFP4": Method(fp4.NVFP4_LAYOUT, fp4.decode_nvfp4),
        "auto-round auto_round:auto_gptq": Method(gptq.LAYOUT, gptq.decode),
        "auto-round auto_round:auto_awq": Method(awq.LAYOUT, awq.decode),
    }
)
"""By name, as `method_name` gives it."""

_COMPRESSED_FORMATS = frozenset(
    {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized"}
)
# The field that says which of a method's formats it is.
_REFINED_BY = {"modelopt": "quant_algo", "auto-round": "packing_format"}


def method_name(settings: Mapping[str, Any]) -> str:
    """Return the key of `METHODS` that `quantization_config` asks for, whether there is one."""
    method = settings.get("quant_method")
    producer = settings.get("producer")
    if method is None and isinstance(producer, Mapping):
        method = producer.get("name")
    refined = _REFINED_BY.get(str(method))
    return f"{method} {settings.get(refined)}" if refined else str(method)


def find_method(settings: object, where: str) -> Method:
    """Return how a quantized checkpoint is read.

    Args:
        settings: `quantization_config`.
        where: The checkpoint, for messages.

    Raises:
        CheckpointError: naming the method, if it is not read.
    """
    if not isinstance(settings, Mapping):
        raise CheckpointError(
            f"{where}: quantization_config is {settings!r}; needed: a JSON object."
        )
    name = method_name(settings)
    method = METHODS.get(name)
    if method is None:
        raise CheckpointError(
            f"{where} has weights quantized by {name!r} (quantization_config), which are not read. "
            f"Read are: {', '.join(METHODS)}. Use the checkpoint that it was quantized from, or "
            "build without weights."
        )
    form = settings.get("format")
    if name == "compressed-tensors" and form not in _COMPRESSED_FORMATS:
        raise CheckpointError(
            f"{where} has weights in the compressed-tensors format {form!r}, which are not read. "
            f"Read are: {', '.join(sorted(_COMPRESSED_FORMATS))}. Use the checkpoint that it was "
            "quantized from, or build without weights."
        )
    return method


def decode_checkpoint(settings: object, tensors: Tensors, where: str) -> Tensors:
    """Return the tensors with each quantized module's weight in place of its parts.

    A weight of integers that `MatMulNBits` can take is a `BlockQuantizedTensor`; any other is
    computed as floats while it is read.

    Args:
        settings: `quantization_config`.
        tensors: Of the checkpoint, by name.
        where: The checkpoint, for messages.

    Raises:
        CheckpointError: if the method is not read, or tensors are not what it says.
    """
    method = find_method(settings, where)
    assert isinstance(settings, Mapping)
    modules, others = group_tensors(tensors, method.layout)
    if not modules:
        raise CheckpointError(
            f"{where} says that its weights are quantized by {method_name(settings)!r} "
            f"(quantization_config), and holds no tensor that ends in "
            f"{' or '.join(method.layout.parts)}. If its weights are floats, remove "
            "quantization_config from config.json."
        )
    decoded = dict(others)
    for name, module in modules.items():
        decoded[f"{name}{method.layout.weight}"] = method.decode(module, settings)
    return decoded
