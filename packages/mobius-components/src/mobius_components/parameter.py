"""`Parameter`: a weight of a component, of the build's dtype unless it says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnxscript import nn


class Parameter(nn.Parameter):
    """A weight `[*shape]` that a checkpoint fills.

    A component does not know for which dtype it will be built, so a parameter follows the build
    (`set_build_dtype`) unless `dtype` fixes it, as for a router that must stay float32.
    """

    def __init__(
        self, shape: Sequence[int], dtype: ir.DataType | None = None, name: str | None = None
    ) -> None:
        super().__init__(shape, dtype=dtype, name=name)
        self._follows_build = dtype is None

    def __deepcopy__(self, memo: dict[int, object]) -> Parameter:
        """Return a parameter like this one that belongs to no graph yet."""
        assert self.shape is not None
        copy = Parameter(self.shape.numpy(), self.dtype, self.name)
        copy._follows_build = self._follows_build
        memo[id(self)] = copy
        return copy

    def set_build_dtype(self, dtype: ir.DataType) -> None:
        """Take `dtype`, unless the component fixed another."""
        if self._follows_build:
            self.type = ir.TensorType(dtype)


def set_build_dtype(module: nn.Module, dtype: ir.DataType) -> None:
    """Give every parameter of `module` that follows the build the element type `dtype`."""
    for parameter in module.parameters():
        if isinstance(parameter, Parameter):
            parameter.set_build_dtype(dtype)
