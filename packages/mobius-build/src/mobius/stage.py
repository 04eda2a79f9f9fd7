"""`Stage`: one row of the pipeline; `Target`: all that a row may know of what it runs for."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import onnx_ir as ir

from mobius.roles import Role
from mobius_eps import EpCapabilities
from mobius_eps.capabilities import NEWEST_OPSET


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
        opset: Newest opset that the user allows; `None` for whatever the provider runs.
        model_opset: The opset that the model comes in; by default the one that models are
            written in.
    """

    capabilities: EpCapabilities
    dtype: ir.DataType
    role: Role
    opset: int | None = None
    model_opset: int = NEWEST_OPSET

    @property
    def max_opset(self) -> int:
        """The newest opset that the result may be in."""
        newest = self.capabilities.max_opset
        return newest if self.opset is None else min(self.opset, newest)

    @property
    def result_opset(self) -> int:
        """The opset that the result will be in."""
        return min(self.max_opset, self.model_opset)


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
