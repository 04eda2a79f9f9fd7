"""`Stage`: one row of the pipeline; `Target`: all that a row may know of what it runs for."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import onnx_ir as ir

from mobius.roles import Role
from mobius_eps import EpCapabilities


class Phase(enum.Enum):
    """The parts of the pipeline, in the order in which they run; values are what a trace prints."""

    CLEANUP = "1"
    FUSION = "2"
    INLINE = "2b"
    LOWERING = "3"
    FOLD = "4"


@dataclasses.dataclass(frozen=True)
class Target:
    """What a model is optimised for.

    Attributes:
        capabilities: What the execution provider can run.
        dtype: Element type of weights and activations.
        role: What the model is for.
    """

    capabilities: EpCapabilities
    dtype: ir.DataType
    role: Role


@dataclasses.dataclass(frozen=True)
class Stage:
    """One row of the pipeline.

    Attributes:
        phase: The part of the pipeline that it belongs to.
        name: What traces and reports call it.
        when: Whether the stage runs for a target; reads nothing else.
        make: Makes a new in-place pass for a target.
    """

    phase: Phase
    name: str
    when: Callable[[Target], bool]
    make: Callable[[Target], ir.passes.PassBase]
