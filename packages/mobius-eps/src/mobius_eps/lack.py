"""`Lack`: one operator that an execution provider has no kernel for, or gets wrong, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from mobius_eps.errors import InvalidCapabilitiesError


@dataclasses.dataclass(frozen=True)
class Lack:
    """An operator that a target must not be given.

    Fusions do not make it, and what makes an operator of others takes it apart.

    Attributes:
        op_type: The operator.
        domain: Its domain; `""` is standard ONNX.
        dtypes: Dtypes in which it is lacking; empty for all. Given as any iterable.
        attribute: Where only a use of the operator is wrong: the attribute that must not be set,
            or the optional input or output that must not be given, by the name that the operator's
            documentation has for it. Of an input that is always given, `seqlens_k` of
            `GroupQueryAttention`, it means that the kernel does not read it: rows are then told
            apart by `attention_bias`. `name=value` where one value of an integer attribute is
            wrong, several joined by ", " where only all of them together are. `None` means that the
            whole operator is lacking.
        input_dtypes: Where `attribute` is an input, and wrong in some element types only: these.
            Empty for all. Given as any iterable.
        reason: What happens otherwise, or where it was read; for reports.

    Raises:
        InvalidCapabilitiesError: If a value is wrong. The message names the field and the value.
    """

    op_type: str
    domain: str = ""
    dtypes: frozenset[ir.DataType] = frozenset()
    attribute: str | None = None
    reason: str = ""
    input_dtypes: frozenset[ir.DataType] = frozenset()

    def __post_init__(self) -> None:
        """Validate each field and freeze the dtypes."""
        for field in ("op_type", "domain", "reason"):
            value = getattr(self, field)
            if not isinstance(value, str) or (field == "op_type" and not value):
                raise self._error(field, "must be a str" + " and not empty" * (field == "op_type"))
        if self.domain == "ai.onnx":
            raise self._error("domain", "must be '' for the standard domain")
        if self.attribute is not None and (
            not isinstance(self.attribute, str) or not self.attribute
        ):
            raise self._error("attribute", "must be a str and not empty, or None")
        for field in ("dtypes", "input_dtypes"):
            object.__setattr__(self, field, self._frozen_dtypes(field))
        if self.input_dtypes and self.attribute is None:
            raise self._error("input_dtypes", "needs the name of the input in attribute")

    def _frozen_dtypes(self, field: str) -> frozenset[ir.DataType]:
        dtypes = getattr(self, field)
        if isinstance(dtypes, str | bytes | Mapping) or not isinstance(dtypes, Iterable):
            raise self._error(field, "must be a set of onnx_ir.DataType")
        frozen = frozenset(dtypes)
        # A bare 1 equals DataType.FLOAT, yet it is not one and prints badly.
        if not all(isinstance(dtype, ir.DataType) for dtype in frozen):
            raise self._error(field, "must hold onnx_ir.DataType only")
        return frozen

    @property
    def use(self) -> Mapping[str, ir.DataType | None]:
        """What a use that is lacking sets, as `covers` takes it."""
        if self.attribute is None:
            return {}
        return dict.fromkeys(self.attribute.split(", "), min(self.input_dtypes, default=None))

    def covers(self, dtype: ir.DataType | None, uses: Collection[str] = ()) -> bool:
        """Return whether a use of the operator is lacking.

        Args:
            dtype: Dtype of the use; `None` asks whether it is lacking in every dtype.
            uses: What the use sets, as `attribute` names it. A mapping says the element types of
                the inputs, without which a lack that has `input_dtypes` covers nothing.
        """
        if self.dtypes and (dtype is None or dtype not in self.dtypes):
            return False
        if self.attribute is None:
            return True
        if not all(each in uses for each in self.attribute.split(", ")):
            return False
        if not self.input_dtypes:
            return True
        return isinstance(uses, Mapping) and uses[self.attribute] in self.input_dtypes

    def _error(self, field: str, needed: str) -> InvalidCapabilitiesError:
        return InvalidCapabilitiesError(
            f"Lack {self.op_type!r}: {field}={getattr(self, field)!r} {needed}"
        )
