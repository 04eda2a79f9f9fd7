"""Matrices that a checkpoint lists expert by expert -> one lazy tensor for all experts of a layer.

transformers 5 keeps the experts of a layer in one tensor and writes either form; older checkpoints,
and nearly all on the hub, list them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from mobius.stored_quantization import as_quantized
from mobius.streaming import WeightTensor, visit_chunks
from mobius_hf.errors import CheckpointError
from mobius_ir_rules.quantized_weights import BlockQuantizedStack

Chunk = npt.NDArray[Any]

_SHOWN = 5
_LISTED = re.compile(r"(?P<stem>.*\.experts)\.(?P<expert>\d+)\.(?P<part>.+)")


@dataclasses.dataclass(frozen=True)
class Stack:
    """A parameter `[experts, out, in]` that is stored as `parts` of each expert.

    Attributes:
        into: Last part of the parameter's name, after `experts.`.
        parts: Names of an expert's own matrices, in the order in which their rows are joined.
    """

    into: str
    parts: tuple[str, ...]


GATED_STACKS = (
    Stack("gate_up_proj", ("gate_proj.weight", "up_proj.weight")),
    Stack("down_proj", ("down_proj.weight",)),
)
"""Of experts with a gate."""
PLAIN_STACKS = (
    Stack("up_proj", ("up_proj.weight",)),
    Stack("down_proj", ("down_proj.weight",)),
)
"""Of experts without."""


def stack_experts(
    stacks: Sequence[Stack],
    experts: int,
    sources: MutableMapping[str, str],
    checkpoint: Mapping[str, ir.TensorProtocol],
) -> dict[str, ir.TensorProtocol]:
    """Take the listed experts out of `sources` and return the stacked tensors.

    Args:
        stacks: What the family stacks.
        experts: Number of experts of a layer.
        sources: Tensor of the checkpoint for each parameter name.
        checkpoint: The tensors.

    Raises:
        CheckpointError: if experts of a layer are missing or too many, or their shapes differ.
    """
    found: dict[tuple[str, Stack], dict[tuple[int, str], str]] = {}
    by_part = {part: stack for stack in stacks for part in stack.parts}
    for name in sources:
        match = _LISTED.fullmatch(name)
        if match is not None and match["part"] in by_part:
            key = match["stem"], by_part[match["part"]]
            found.setdefault(key, {})[int(match["expert"]), match["part"]] = name
    problems: list[str] = []
    tensors: dict[str, ir.TensorProtocol] = {}
    for (stem, stack), names in found.items():
        needed = dict.fromkeys((i, part) for i in range(experts) for part in stack.parts)
        lacking = [key for key in needed if key not in names]
        problems += [f"{stem}.{expert}.{part} is missing" for expert, part in lacking]
        problems += [f"{name} is one too many" for key, name in names.items() if key not in needed]
        listed = {name: checkpoint[sources.pop(name)] for name in names.values()}
        if not problems:
            parameter = f"{stem}.{stack.into}"
            if parameter in sources:
                problems.append(f"{parameter} is there beside {next(iter(listed))}")
            tensors[parameter] = _joined(parameter, [listed[names[key]] for key in needed], experts)
    if problems:
        more = f", and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise CheckpointError(
            f"The checkpoint's experts do not fit the {experts} experts a layer that config.json "
            f"says: {'; '.join(sorted(problems)[:_SHOWN])}{more}. Download it again."
        )
    return tensors


class StackedTensor(ir.LazyTensor):
    """Matrices of one dtype and shape, one after the other: `[experts, out, in]`.

    Its data come in parts, of one matrix after the other, so none need be in memory whole.

    Attributes:
        parts: The matrices.
    """

    parts: tuple[ir.TensorProtocol, ...]

    def __init__(self, parts: Sequence[ir.TensorProtocol], experts: int, name: str) -> None:
        """Store the parts; nothing is read."""
        self.parts = tuple(parts)
        rows, *rest = parts[0].shape.numpy()
        shape = ir.Shape([experts, rows * len(parts) // experts, *rest])
        super().__init__(self._read, dtype=parts[0].dtype, shape=shape, name=name)

    def visit(self, visit: Callable[[Chunk], object]) -> None:
        """Call `visit` with every part of the data in row-major order."""
        for part in self.parts:
            visit_chunks(part, visit)

    def fill(self, out: Chunk) -> None:
        """Write the data into `out`, of this size, in row-major order, converted to its dtype."""
        WeightTensor(self, self.dtype).fill(out)

    def _read(self) -> ir.TensorProtocol:
        array = np.empty(self.shape.numpy(), self.dtype.numpy())
        self.fill(array)
        return ir.Tensor(array, dtype=self.dtype, name=self.name)


def _joined(
    parameter: str, listed: Sequence[ir.TensorProtocol], experts: int
) -> StackedTensor | BlockQuantizedStack:
    """Return the matrices one after the other as `[experts, out, in]`; integers stay such."""
    first = listed[0]
    for tensor in listed[1:]:
        if tensor.dtype != first.dtype or tensor.shape != first.shape:
            raise CheckpointError(
                f"The tensor {tensor.name!r} is {tensor.dtype.name}{list(tensor.shape)}, but "
                f"{first.name!r} of the same layer is {first.dtype.name}{list(first.shape)}; all "
                "experts must be alike."
            )
    quantized = [each for each in map(as_quantized, listed) if each is not None]
    if len(quantized) == len(listed) and len({each.weight.form for each in quantized}) == 1:
        return BlockQuantizedStack(quantized, experts, parameter)
    return StackedTensor(listed, experts, parameter)
