"""`Task`: module and configuration in, `ModelPackage` out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import onnx_ir as ir
from onnxscript import GraphBuilder, nn

from mobius import __about__
from mobius.package import ModelPackage
from mobius.repeating_builder import RepeatingBuilder
from mobius_components import ArchitectureConfig, set_build_dtype
from mobius_eps import MobiusError, get_build_dtype

# Written by number, not taken from what is installed: runtimes lag behind the newest onnx.
OPSET_VERSION = 24
IR_VERSION = 10


class UnknownTaskError(MobiusError, ValueError):
    """No task has the name."""

    def __init__(self, task: str, known: tuple[str, ...]) -> None:
        super().__init__(f"Unknown task {task!r}. Supported: {sorted(known)}")


class Task(Protocol):
    """Builds the graphs of one kind of use."""

    def build(self, module: nn.Module, config: ArchitectureConfig) -> ModelPackage:
        """Return the graphs of `module`, in the dtype of the active `build_context`.

        `module` itself is not changed and may be built again.
        """
        ...


def build_graph(
    module: nn.Module, name: str, trace: Callable[[nn.Module, GraphBuilder], None]
) -> ir.Model:
    """Return the model that `trace(module, builder)` writes.

    A module's parameters become values of one graph, so a copy of `module` is traced; its
    parameters take the dtype of the active `build_context`.
    """
    module = copy.deepcopy(module)
    set_build_dtype(module, get_build_dtype())
    graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET_VERSION}, name=name)
    builder = RepeatingBuilder(graph)
    trace(module, builder)
    for domain, _, _ in builder.functions:
        graph.opset_imports.setdefault(domain, 1)
    return ir.Model(
        graph,
        ir_version=IR_VERSION,
        producer_name="mobius",
        producer_version=__about__.__version__,
        functions=list(builder.functions.values()),
    )
