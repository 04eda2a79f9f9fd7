"""What an expert computes between its products: attributes of a call in -> nodes out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import Integers
from mobius_ir_rules.rule import refuse
from mobius_ir_rules.values import describe_node, float_attribute, int_attribute, string_attribute

GATED = ("swiglu", "geglu")
PLAIN = ("relu", "relu2", "gelu", "silu", "identity")
EXACT = ("gelu_erf", "geglu_erf")
"""Activations that ONNX Runtime's operators lack: GELU itself, not its tanh form."""

_END = 2**63 - 1  # of a Slice, whatever the length


@dataclasses.dataclass(frozen=True)
class Activation:
    """What an expert computes between its products.

    The gated ones, of a gate `g` and a linear part `l`: swiglu is
    `G * sigmoid(alpha * G) * (L + beta)` with `G = min(g, limit)`, `L = clip(l, -limit, limit)`;
    with `limit_after`, `min(g * sigmoid(alpha * g), limit)` stands for the first factor. geglu is
    `gelu(g) * l`. gelu is the tanh form, as in ONNX Runtime's kernels; gelu_erf and geglu_erf have
    the exact one.

    Attributes:
        kind: Value of `activation_type`.
        fusion: 0: `g` and `l` are products of their own, 1: rows alternate, 2: `g` comes first.
        alpha: Factor in swiglu's sigmoid.
        beta: Added to swiglu's linear part.
        limit: Clips swiglu's parts; infinite for no clipping.
        limit_after: Whether the activated gate is clipped instead of the gate.
    """

    kind: str
    fusion: int
    alpha: float
    beta: float
    limit: float
    limit_after: bool


def read_activation(
    node: ir.Node, *, separate_gate: bool | None, kinds: Sequence[str] = GATED + PLAIN
) -> Activation:
    """Return what the call's experts compute.

    Args:
        node: The call.
        separate_gate: Whether it has a layer `fc3`; `None` where its operator knows none.
        kinds: The activations that its operator knows.

    Raises:
        RefusedError: If the attributes contradict each other or the operator's documentation.
    """
    kind = string_attribute(node, "activation_type", "relu")
    fusion = int_attribute(node, "swiglu_fusion", 0)
    if kind not in kinds:
        refuse(
            f"{describe_node(node)} has activation_type={kind!r}; one of {sorted(kinds)} is "
            "needed.",
            node,
        )
    fused = kind.startswith("geglu") or (kind == "swiglu" and separate_gate is None)
    if fusion not in (0, 1, 2) or (fused and not fusion):
        refuse(
            f"{describe_node(node)} has swiglu_fusion={fusion} for {kind}; "
            f"{'1 or 2' if fused else '0, 1 or 2'} is needed.",
            node,
        )
    if separate_gate is not None and separate_gate is not (kind == "swiglu" and fusion == 0):
        refuse(
            f"{describe_node(node)} {'has' if separate_gate else 'lacks'} fc3_experts_weights "
            f"with activation_type={kind!r} and swiglu_fusion={fusion}; it is needed for swiglu "
            "with swiglu_fusion=0, and for nothing else.",
            node,
        )
    return Activation(
        kind=kind,
        fusion=fusion,
        alpha=float_attribute(node, "activation_alpha", 1.0),
        beta=float_attribute(node, "activation_beta", 0.0),
        limit=float_attribute(node, "swiglu_limit", math.inf),
        limit_after=bool(int_attribute(node, "swiglu_limit_after_activation", 0)),
    )


def activation_attributes(activation: Activation) -> list[ir.Attr]:
    """Return the operator's attributes that say `activation`; an infinite limit is left out."""
    attributes = [
        ir.AttrString("activation_type", activation.kind),
        ir.AttrFloat32("activation_alpha", activation.alpha),
        ir.AttrFloat32("activation_beta", activation.beta),
        ir.AttrInt64("swiglu_fusion", activation.fusion),
        ir.AttrInt64("swiglu_limit_after_activation", int(activation.limit_after)),
    ]
    if math.isfinite(activation.limit):
        attributes.append(ir.AttrFloat32("swiglu_limit", activation.limit))
    return attributes


def activate(
    op: OpBuilder,
    activation: Activation,
    inner: Any,
    linear: Any | None,
    dtype: ir.DataType | None,
    integers: Integers,
) -> Any:
    """Return what goes into an expert's last product.

    Args:
        op: Where nodes are made.
        activation: What to compute.
        inner: The first product, `[tiles, out, rows]`.
        linear: The linear part, where it is a product of its own.
        dtype: Element type, where it is known.
        integers: Constants of the body.

    Returns:
        `[tiles, intermediate, rows]`.
    """

    def constant(value: float) -> Any:
        if dtype is None:
            return op.CastLike(op.Constant(value_float=value), inner)
        return op.Constant(value=ir.tensor(value, dtype=dtype))

    match activation.kind:
        case "identity":
            return inner
        case "relu":
            return op.Relu(inner)
        case "relu2":
            positive = op.Relu(inner)
            return op.Mul(positive, positive)
        case "silu":
            return op.Mul(inner, op.Sigmoid(inner))
        case "gelu":
            return _gelu_tanh(op, inner, constant)
        case "gelu_erf":
            return _gelu_erf(op, inner, constant)
    gate = inner
    if linear is None:
        gate, linear = _split(op, inner, activation.fusion, integers)
    if activation.kind == "geglu":
        return op.Mul(_gelu_tanh(op, gate, constant), linear)
    if activation.kind == "geglu_erf":
        return op.Mul(_gelu_erf(op, gate, constant), linear)
    return _swiglu(op, activation, gate, linear, constant)


def _swiglu(
    op: OpBuilder, activation: Activation, gate: Any, linear: Any, constant: Callable[[float], Any]
) -> Any:
    limited = math.isfinite(activation.limit)
    if limited:
        linear = op.Max(op.Min(linear, constant(activation.limit)), constant(-activation.limit))
        if not activation.limit_after:
            gate = op.Min(gate, constant(activation.limit))
    turned = gate
    if activation.alpha != 1.0:
        turned = op.Mul(gate, constant(activation.alpha))
    gate = op.Mul(gate, op.Sigmoid(turned))
    if limited and activation.limit_after:
        gate = op.Min(gate, constant(activation.limit))
    if activation.beta:
        linear = op.Add(linear, constant(activation.beta))
    return op.Mul(gate, linear)


def _split(op: OpBuilder, inner: Any, fusion: int, integers: Integers) -> tuple[Any, Any]:
    """Return gate and linear part, rows of axis 1 in turn or in halves."""
    if fusion == 2:
        # Without the attribute, which is of opset 18, the parts are equal too.
        equal = {} if (op.version or 0) < 18 else {"num_outputs": 2}
        gate, linear = op.Split(inner, axis=1, **equal, _outputs=2)
        return gate, linear
    vector = integers.vector
    rest = vector(_END), vector(1), vector(2)
    return op.Slice(inner, vector(0), *rest), op.Slice(inner, vector(1), *rest)


def _gelu_tanh(op: OpBuilder, x: Any, constant: Callable[[float], Any]) -> Any:
    """Return the tanh form of GELU; `Gelu` itself is of opset 20."""
    cubic = op.Add(op.Mul(op.Mul(op.Mul(x, x), x), constant(0.044715)), x)
    bent = op.Tanh(op.Mul(cubic, constant(math.sqrt(2.0 / math.pi))))
    return op.Mul(op.Mul(x, constant(0.5)), op.Add(bent, constant(1.0)))


def _gelu_erf(op: OpBuilder, x: Any, constant: Callable[[float], Any]) -> Any:
    """Return GELU itself; the operator is of opset 20."""
    error = op.Erf(op.Mul(x, constant(2.0**-0.5)))
    return op.Mul(op.Mul(x, constant(0.5)), op.Add(error, constant(1.0)))
