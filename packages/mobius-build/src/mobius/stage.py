"""`Stage`: one row of the pipeline; `Target`: all that a row may know of what it runs for."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

import onnx_ir as ir

from mobius.dtypes import DTYPE_NAMES, short_name
from mobius.padding import PaddingSide
from mobius.quantization import Quantization
from mobius.roles import Role
from mobius_eps import EpCapabilities
from mobius_eps.capabilities import NEWEST_OPSET

_WAY_BACK = 18


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
        raised_opset: The opset that it is raised to before anything else; `None` where it is not.
        padding_side: Where the rows of a batch are padded.
        quantization: Which weights become integers; `None` for none of them.
    """

    capabilities: EpCapabilities
    dtype: ir.DataType
    role: Role
    opset: int | None = None
    model_opset: int = NEWEST_OPSET
    padding_side: PaddingSide = PaddingSide.RIGHT
    quantization: Quantization | None = None
    raised_opset: int | None = None

    @property
    def max_opset(self) -> int:
        """The newest opset that the result may be in."""
        newest = self.capabilities.max_opset
        return newest if self.opset is None else min(self.opset, newest)

    @property
    def raise_goal(self) -> int:
        """The opset to which a model older than `max_opset` is raised, if it can be.

        The one that fusions are written for, even if the result is brought down again: there is a
        way back to opset 18 for all that a model can hold, and beyond it there is not.
        """
        return NEWEST_OPSET if self.max_opset >= _WAY_BACK else self.max_opset

    @property
    def working_opset(self) -> int:
        """The opset that the model is in while it is optimised."""
        return self.model_opset if self.raised_opset is None else self.raised_opset

    @property
    def result_opset(self) -> int:
        """The opset that the result will be in."""
        return min(self.max_opset, self.working_opset)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One row of the pipeline.

    Attributes:
        phase: The part of the pipeline that it belongs to.
        name: What traces and reports call it.
        when: Whether the stage runs for a target; reads nothing else.
        make: Makes a new in-place pass for a target.
        needs: What `when` asks for, as what it is not run for lacks it; empty if nothing.
        reads: The fields of `EpCapabilities` that say whether the target has it.
    """

    phase: Phase
    name: str
    when: Callable[[Target], bool]
    make: Callable[[Target], ir.passes.PassBase]
    needs: str = ""
    reads: tuple[str, ...] = ()

    def why_left_out(self, target: Target) -> str:
        """Return why the stage does not run for a target that `when` refuses, as a sentence."""
        said = [f"{field} is {_shown(getattr(target.capabilities, field))}" for field in self.reads]
        here = f" For {target.capabilities.name} {', '.join(said)}." if said else ""
        return f"It needs {self.needs}.{here}"


def _shown(value: object) -> str:
    if isinstance(value, frozenset):
        return " and ".join(short_name(each) for each in DTYPE_NAMES if each in value) or "empty"
    return str(value)
