"""Bodies of `com.microsoft::FastGelu`: `Y = Gelu(X + bias)`, the tanh approximation.

`X` has shape `[..., hidden]`, `bias` `[hidden]`; both, and `Y`, have one float type. `bias` is
optional: a body is made for the call, with it or without.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.calls import CallBody, given_inputs, make_call_body, require_inputs
from mobius_ir_rules.functions.gelu import tanh_gelu
from mobius_ir_rules.values import MICROSOFT

FAST_GELU = (MICROSOFT, "FastGelu")

_INPUTS = ("X", "bias")


@dataclasses.dataclass(frozen=True)
class FastGeluForm:
    """What a call of FastGelu looks like.

    Attributes:
        given: Names of the inputs that it gives.
    """

    given: tuple[str, ...]


def read_fast_gelu(node: ir.Node) -> FastGeluForm:
    """Return the form of a call.

    Raises:
        RefusedError: If the call lacks `X`, or has more inputs than the operator.
    """
    given = given_inputs(node, _INPUTS)
    require_inputs(node, given, ("X",))
    return FastGeluForm(given)


def fast_gelu(form: FastGeluForm, opset_version: int) -> ir.Function:
    """Return the body of a form for `opset_version`."""

    def body(op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Any:
        x = inputs["X"]
        total = op.Add(x, inputs["bias"]) if "bias" in inputs else x
        return tanh_gelu(op, total, opset_version)

    return make_call_body(FAST_GELU, _INPUTS, form.given, ["Y"], [], body, opset_version)


FAST_GELU_BODY = CallBody(read_fast_gelu, fast_gelu)
"""The row of FastGelu in the table of bodies."""
