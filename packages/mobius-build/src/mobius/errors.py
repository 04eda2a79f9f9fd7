"""What can go wrong with a package, its weights, and files that are given to Mobius.

Each error is a `mobius_eps.MobiusError` and also the builtin that a caller would expect. A message
says what was found, where, and what to do next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mobius_eps import MobiusError

__all__ = [
    "ModelFileError",
    "NonFiniteTensor",
    "NonFiniteWeightsError",
    "PackageError",
    "PackageLoadError",
    "PackageSaveError",
    "ReportError",
    "VerifyError",
    "WeightsError",
    "cause_of",
]


def cause_of(error: BaseException) -> BaseException:
    """Return the error that `error` goes back to; a reader's own says only where it was."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class PackageError(MobiusError):
    """A `ModelPackage` cannot be made, saved or loaded."""


class PackageSaveError(PackageError, OSError):
    """A package could not be saved. Nothing that existed before has been changed."""


class PackageLoadError(PackageError, ValueError):
    """A folder is not a package that this version of Mobius can read."""


class WeightsError(MobiusError, ValueError):
    """Tensors and parameters do not fit each other.

    Attributes:
        missing: Parameters for which no tensor was given.
        left_over: Tensors that no parameter takes.
        mismatched: Parameters whose tensor has another shape or kind of dtype.
    """

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[str] = (),
        left_over: Sequence[str] = (),
        mismatched: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.left_over = tuple(left_over)
        self.mismatched = tuple(mismatched)


@dataclasses.dataclass(frozen=True)
class NonFiniteTensor:
    """A weight with values that are not finite numbers.

    Attributes:
        name: Name of the parameter.
        not_finite: How many values are NaN or infinite in the checkpoint already.
        overflowed: How many finite values are beyond the range of the dtype they are cast to.
    """

    name: str
    not_finite: int
    overflowed: int


class NonFiniteWeightsError(WeightsError):
    """Weights hold NaN, infinities, or values that the target dtype cannot hold.

    Attributes:
        tensors: The weights concerned, in file order.
    """

    def __init__(self, message: str, *, tensors: Sequence[NonFiniteTensor]) -> None:
        super().__init__(message)
        self.tensors = tuple(tensors)


class ReportError(MobiusError, OSError):
    """The HTML report cannot be written."""


class ModelFileError(MobiusError, ValueError):
    """A file is not an ONNX model that can be read with all of its data."""


class VerifyError(MobiusError, ValueError):
    """Two models cannot be compared."""
