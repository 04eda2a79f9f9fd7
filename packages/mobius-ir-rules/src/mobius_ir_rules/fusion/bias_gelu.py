"""BiasGelu: a 1-D bias added before a GELU -> BiasGelu (exact form) or FastGelu (tanh form)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    input_at,
    is_binary,
    like,
    make,
    producer_of,
    rank,
    string_attribute,
)

DTYPES = (
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
)


OPERATORS = ("BiasGelu", "FastGelu")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BiasGeluPlan(Plan):
    operator: str
    x: ir.Value
    bias: ir.Value


class BiasGelu(Rule):
    """Fuse a bias with the GELU behind it.

    Before, and after:

        y = Gelu(Add(x, bias))                          # exact, erf
        y = com.microsoft.BiasGelu(x, bias)

        y = Gelu <approximate = "tanh"> (Add(x, bias))  # tanh
        y = com.microsoft.FastGelu(x, bias)

    `com.microsoft.Gelu` (exact) and `com.microsoft.FastGelu` without a bias (tanh) are taken like
    Gelu. `bias` is `[hidden]`, on either side of the Add, and `x` has rank 2 or more and `hidden`
    as its last size. The sum must have no other use: the fused operators do not give it.

    BiasGelu is the erf form and FastGelu the tanh form; they differ by up to 4.7e-4.
    """

    roots = (("", "Gelu"), (MICROSOFT, "Gelu"), (MICROSOFT, "FastGelu"))
    emits = ((MICROSOFT, "BiasGelu"), (MICROSOFT, "FastGelu"))

    def __init__(self, operators: Collection[str] = OPERATORS) -> None:
        """Create the rule; see `bias_gelu_rules`."""
        self._operators = frozenset(operators)
        super().__init__("BiasGelu")

    def plan(self, node: ir.Node) -> _BiasGeluPlan | None:
        """Return what to do with the GELU, `None` where no bias is added before it."""
        operator = "FastGelu" if _is_tanh(node) else "BiasGelu"
        if operator not in self._operators:
            return None
        add = producer_of(input_at(node, 0), "", "Add")
        if add is None or add.graph is not node.graph or not is_binary(add):
            return None
        if input_at(node, 1) is not None:
            return None
        vectors = [index for index, value in enumerate(add.inputs) if rank(value) == 1]
        if len(vectors) != 1:
            return None
        bias, x = add.inputs[vectors[0]], add.inputs[1 - vectors[0]]
        assert bias is not None
        assert x is not None
        if x.dtype not in DTYPES:
            refuse(
                f"An input of {describe_node(add)} has the type {x.dtype or 'unknown'}; FLOAT, "
                f"FLOAT16, BFLOAT16 or DOUBLE is needed to fuse {describe_node(node)}.",
                add,
            )
        _require_hidden(add, x, bias)
        total = add.outputs[0]
        if len(total.uses()) > 1 or total.is_graph_output():
            refuse(
                f"The sum of {describe_node(add)} is used elsewhere; {describe_node(node)} must be "
                "its only use.",
                add,
            )
        return _BiasGeluPlan(
            root=node,
            replaced=(node.outputs[0],),
            absorbed=(add,),
            operator=operator,
            x=x,
            bias=bias,
        )

    def emit(self, op: RewriterContext, plan: _BiasGeluPlan) -> Sequence[ir.Value]:
        """Make the fused node."""
        return [
            make(
                op,
                plan.operator,
                [plan.x, plan.bias],
                like(plan.replaced[0]),
                domain=MICROSOFT,
                name=plan.root.name,
            )
        ]


def _require_hidden(add: ir.Node, x: ir.Value, bias: ir.Value) -> None:
    """Refuse unless the last size of `x` is provably that of the bias."""
    assert bias.shape is not None
    hidden = bias.shape[0]
    if x.shape is not None and len(x.shape) >= 2:
        last = x.shape[-1]
        known = isinstance(last, int) or last.value is not None
        if known and last == hidden:
            return
    shape = "an unknown shape" if x.shape is None else f"shape {x.shape}"
    refuse(
        f"{describe_node(add)} adds a bias of shape {bias.shape} to {shape}; [..., {hidden}] is "
        "needed.",
        add,
    )


def _is_tanh(node: ir.Node) -> bool:
    if node.op_type == "FastGelu":
        return True
    return not node.domain and string_attribute(node, "approximate", "none") == "tanh"


def bias_gelu_rules(operators: Collection[str] = OPERATORS) -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`.

    Args:
        operators: Which of `BiasGelu` and `FastGelu` the target runs; a GELU whose form would need
            the other one is left alone.
    """
    return [BiasGelu(operators)]
