"""Tensors of a quantized checkpoint -> modules: what belongs to one weight, and everything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from mobius_hf.errors import CheckpointError

__all__ = ["FLOATS", "WORDS", "Layout", "Module", "group_tensors", "sizes"]

Tensors = Mapping[str, ir.TensorProtocol]

FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT)
"""Types that scales, and weights that are not quantized, have."""
WORDS = (ir.DataType.INT32,)
"""Type of what integers of a few bits are packed into, and of the groups of columns."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a method calls the tensors of a module.

    Attributes:
        parts: Endings of names of tensors that are there in place of the weight, or beside it.
        ignored: Endings of what only matters to activations or caches that are quantized too.
        weight: Ending of the weight itself, which is the name that the floats get.
    """

    parts: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    weight: str = ".weight"


@dataclasses.dataclass(frozen=True)
class Module:
    """The tensors of one weight.

    Attributes:
        name: What their names have in common.
        tensors: By ending, the weight's own included where there is one.
    """

    name: str
    tensors: Tensors

    def __getitem__(self, ending: str) -> ir.TensorProtocol:
        """Return a tensor.

        Raises:
            CheckpointError: if the module has none of that ending.
        """
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise CheckpointError(
                f"{self.name} has {', '.join(sorted(self.tensors))} and lacks {ending}. The "
                "checkpoint is not complete: download it again."
            )
        return tensor

    def get(self, ending: str) -> ir.TensorProtocol | None:
        """Return a tensor, `None` if the module has none of that ending."""
        return self.tensors.get(ending)

    def require(
        self, ending: str, dtypes: tuple[ir.DataType, ...], rank: int | None = None
    ) -> ir.TensorProtocol:
        """Return a tensor of one of some dtypes and of a number of axes.

        Raises:
            CheckpointError: if it is another, or missing.
        """
        tensor = self[ending]
        if tensor.dtype not in dtypes or (rank is not None and len(tensor.shape) != rank):
            needed = " or ".join(dtype.name for dtype in dtypes)
            axes = "" if rank is None else f" with {rank} axes"
            raise CheckpointError(
                f"{self.name}{ending} is {tensor.dtype.name}{list(tensor.shape)}; needed: "
                f"{needed}{axes}. Does quantization_config belong to this checkpoint?"
            )
        return tensor


def sizes(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return tuple(tensor.shape.numpy())


def group_tensors(tensors: Tensors, layout: Layout) -> tuple[dict[str, Module], Tensors]:
    """Return the modules by name, and the tensors that belong to none.

    Raises:
        CheckpointError: if a module has parts and no weight that they could belong to.
    """
    endings = sorted(layout.parts, key=len, reverse=True)
    parts: dict[str, dict[str, ir.TensorProtocol]] = {}
    others: dict[str, ir.TensorProtocol] = {}
    for name, tensor in tensors.items():
        ending = next((ending for ending in endings if name.endswith(ending)), None)
        if ending is not None:
            parts.setdefault(name.removesuffix(ending), {})[ending] = tensor
        elif not name.endswith(layout.ignored):
            others[name] = tensor
    for module, found in parts.items():
        weight = others.pop(module + layout.weight, None)
        if weight is not None:
            found[layout.weight] = weight
    return {name: Module(name, found) for name, found in parts.items()}, others
