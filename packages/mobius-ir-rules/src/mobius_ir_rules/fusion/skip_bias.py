"""SkipBias: a 1-D bias added to an input of a fused residual norm -> that norm's bias input."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    float_attribute,
    input_at,
    is_binary,
    is_used,
    like,
    make_all,
    producer_of,
    rank,
)

_BIAS_INDEX = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3}
_SCHEMA_EPSILON = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SkipBiasPlan(Plan):
    inputs: tuple[ir.Value | None, ...]
    epsilon: float


class SkipBias(Rule):
    """Let the fused residual norm add the bias of the projection before it.

    Before:

        t = Add(x, bias)
        y, "", "", sum = com.microsoft.SkipLayerNormalization <epsilon> (t, skip, gamma, beta)

    After:

        y, "", "", sum =
            com.microsoft.SkipLayerNormalization <epsilon> (x, skip, gamma, beta, bias)

    SkipSimplifiedLayerNormalization likewise, its bias being the fourth input. The rule is for
    targets with the kernels: the operators' function bodies have no bias, and `AttachFunctions`
    gives the operator none where a call has one.
    """

    roots = tuple((MICROSOFT, operator) for operator in _BIAS_INDEX)
    emits = roots

    def plan(self, node: ir.Node) -> _SkipBiasPlan | None:
        """Return what to do with the norm, `None` where no bias is added before it."""
        index = _BIAS_INDEX[node.op_type]
        if input_at(node, index) is not None or len(node.outputs) != 4:
            return None
        for position in (0, 1):
            add = producer_of(input_at(node, position), "", "Add")
            if add is None or add.graph is not node.graph or not is_binary(add):
                continue
            vectors = [at for at, value in enumerate(add.inputs) if rank(value) == 1]
            if len(vectors) == 1:
                return _plan(node, add, position, vectors[0])
        return None

    def emit(self, op: RewriterContext, plan: _SkipBiasPlan) -> Sequence[ir.Value]:
        """Make the norm with its bias."""
        normalised, total = plan.replaced
        results = make_all(
            op,
            plan.root.op_type,
            plan.inputs,
            like(normalised),
            (None, None),
            (None, None),
            like(total),
            domain=MICROSOFT,
            attributes={"epsilon": plan.epsilon},
            name=plan.root.name,
        )
        return [results[0], results[3]]


def _plan(node: ir.Node, add: ir.Node, position: int, vector: int) -> _SkipBiasPlan:
    bias, x = add.inputs[vector], add.inputs[1 - vector]
    assert bias is not None
    assert x is not None
    assert bias.shape is not None
    gamma = input_at(node, 2)
    if gamma is None or gamma.shape is None or gamma.shape != bias.shape or None in _sizes(bias):
        found = "unknown" if gamma is None else gamma.shape
        refuse(
            f"{describe_node(add)} adds a bias of shape {bias.shape}; the shape of the scale of "
            f"{describe_node(node)}, {found}, is needed.",
            add,
        )
    if x.shape is None or x.shape != add.outputs[0].shape or None in _sizes(x):
        refuse(
            f"{describe_node(add)} adds a bias to shape {x.shape}; all sizes must be known, and "
            "those of the sum.",
            add,
        )
    if len(add.outputs[0].uses()) > 1 or add.outputs[0].is_graph_output():
        refuse(
            f"The sum of {describe_node(add)} is used elsewhere; {describe_node(node)} must be "
            "its only use.",
            add,
        )
    for output in node.outputs[1:3]:
        if is_used(output):
            refuse(
                f"The statistics '{output.name}' of {describe_node(node)} are used; a norm that "
                "makes none is needed.",
                node,
            )
    inputs: list[ir.Value | None] = [*node.inputs]
    inputs += [None] * (_BIAS_INDEX[node.op_type] + 1 - len(inputs))
    inputs[position], inputs[_BIAS_INDEX[node.op_type]] = x, bias
    return _SkipBiasPlan(
        root=node,
        replaced=(node.outputs[0], node.outputs[3]),
        absorbed=(add,),
        inputs=tuple(inputs),
        epsilon=float_attribute(node, "epsilon", _SCHEMA_EPSILON),
    )


def _sizes(value: ir.Value) -> list[int | str | None]:
    assert value.shape is not None
    return [dim if isinstance(dim, int) else dim.value for dim in value.shape]


def skip_bias_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [SkipBias()]
