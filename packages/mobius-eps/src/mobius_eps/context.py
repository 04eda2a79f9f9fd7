"""`build_context(capabilities, dtype)`: what is being built for, seen by code that builds a graph.

It is kept in a `contextvars.ContextVar`: every thread and every asyncio task sees its own, and an
inner context shadows the outer one until it ends, by return or by exception.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

import onnx_ir as ir

from mobius_eps.capabilities import EpCapabilities
from mobius_eps.registry import ep_registry

_DEFAULT_EP = "default"
_DEFAULT_DTYPE = ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True)
class _Build:
    capabilities: EpCapabilities
    dtype: ir.DataType


_current: ContextVar[_Build | None] = ContextVar("mobius_build", default=None)


def build_context(capabilities: EpCapabilities, dtype: ir.DataType) -> AbstractContextManager[None]:
    """Return a context manager inside which `ep_capabilities` and `get_build_dtype` answer these.

    Args:
        capabilities: The execution provider to build for.
        dtype: The float dtype to build in.

    Raises:
        TypeError: If an argument is of another type; raised at the call, before the `with` body.
    """
    if not isinstance(capabilities, EpCapabilities):
        raise TypeError(
            f"build_context needs an EpCapabilities, got {capabilities!r}; "
            "look one up with ep_registry.require(name)"
        )
    if not isinstance(dtype, ir.DataType):
        raise TypeError(
            f"build_context needs an onnx_ir.DataType, such as onnx_ir.DataType.FLOAT16, "
            f"got {dtype!r}"
        )
    return _entered(_Build(capabilities, dtype))


@contextmanager
def _entered(build: _Build) -> Iterator[None]:
    token = _current.set(build)
    try:
        yield
    finally:
        _current.reset(token)


def ep_capabilities() -> EpCapabilities:
    """Return the execution provider that is being built for; outside a build, the default one."""
    build = _current.get()
    return ep_registry.require(_DEFAULT_EP) if build is None else build.capabilities


def get_build_dtype() -> ir.DataType:
    """Return the float dtype that is being built in; outside a build, FLOAT."""
    build = _current.get()
    return _DEFAULT_DTYPE if build is None else build.dtype
