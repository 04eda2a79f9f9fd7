"""`boolean_mask_rules()`: a boolean mask of ai.onnx Attention -> one that is added to the scores.

For targets whose Attention takes floating-point masks only: tract adds the mask to the scores
whatever its type is.

**Before**

```
y = Attention <...> (q, k, v, mask)
```

**After**

```
bias = Where (mask, 0, lowest)
y = Attention <...> (q, k, v, bias)
```

`lowest` is the lowest finite number of the query's type, not minus infinity: a softmax of nothing
but that is NaN on some runtimes. Layers that share a mask share the bias, once common
subexpressions are merged.

Attention gives zeros for a query that may see no key; with the bias it would give the mean of all
values. No query is like that where an operator of `mobius_ir_rules.functions.masks` made the mask
(each sees its own token). After any other mask the zeros are put back:

```
seen = Cast <to = BOOL> (ReduceMax <keepdims = 1> (Cast <to = INT32> (mask), -1))
y = Where (seen, Attention <...> (q, k, v, bias), 0)
```
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.attention_mask import describe_mask
from mobius_ir_rules.lowering._constants import make_scalar
from mobius_ir_rules.rule import Plan, Rule, refuse, standard
from mobius_ir_rules.values import (
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    is_used,
    like,
    make,
    make_all,
    make_int64s,
    output_at,
    rank,
    static_dim,
)

_MASK = 3
_WINDOWS = ("left_window_size", "right_window_size")  # Opset 25; -1 is no window.


def boolean_mask_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [BooleanMaskToAdditive()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _MaskPlan(Plan):
    mask: ir.Value
    query: ir.Value
    dtype: ir.DataType
    sees_a_key: bool


class BooleanMaskToAdditive(Rule):
    """Give one Attention node a floating-point mask."""

    roots = (("", "Attention"),)
    emits = standard("Attention", "Cast", "ReduceMax", "Squeeze", "Where")

    def plan(self, node: ir.Node) -> _MaskPlan | None:
        """Find the mask; refuse where a query may see no key for another reason."""
        mask = input_at(node, _MASK)
        if mask is None or mask.dtype != ir.DataType.BOOL:
            return None
        query = input_at(node, 0)
        if query is None or query.dtype is None:
            refuse(
                f"The element type of the query of {describe_node(node)} is not known; the mask "
                "takes it.",
                node,
            )
        if is_used(output_at(node, 3)):
            refuse(
                f"The output qk_matmul_output of {describe_node(node)} is used; it would show "
                "finite numbers in place of minus infinity.",
                node,
            )
        for name in _hides_keys(node):
            refuse(
                f"{describe_node(node)} has {name} beside its boolean mask; that both leave a key "
                "to each query is not proved.",
                node,
            )
        sees_a_key = describe_mask(mask) is not None
        if not sees_a_key:
            _require_known_rows(node, query, mask)
        outputs = (output_at(node, index) for index in range(len(node.outputs)))
        return _MaskPlan(
            root=node,
            replaced=tuple(output for output in outputs if output is not None),
            mask=mask,
            query=query,
            dtype=query.dtype,
            sees_a_key=sees_a_key,
        )

    def emit(self, op: RewriterContext, plan: _MaskPlan) -> Sequence[ir.Value]:
        """Make the bias and the node again; zeros where the mask hides all keys."""
        root, mask = plan.root, plan.mask
        shown, hidden = (
            make_scalar(op, number, plan.dtype) for number in (0.0, float(plan.dtype.min))
        )
        inputs = list(root.inputs)
        inputs[_MASK] = make(op, "Where", [mask, shown, hidden], (plan.dtype, mask.shape))
        made = make_all(
            op,
            "Attention",
            inputs,
            *(like(output) for output in root.outputs),
            attributes=dict(root.attributes),
            name=root.name,
        )
        for new, old in zip(made, root.outputs, strict=True):
            if old.name == "":
                new.name = ""
        results = [new for new in made if new.name != ""]
        if not plan.sees_a_key:
            seen = _sees_a_key(op, mask, plan.query)
            results[0] = make(op, "Where", [seen, results[0], shown], like(root.outputs[0]))
        return results


def _hides_keys(node: ir.Node) -> Iterator[str]:
    """Yield what hides keys beside the mask."""
    if int_attribute(node, "is_causal", 0):
        yield "is_causal"
    for name in _WINDOWS:
        if int_attribute(node, name, -1) != -1:
            yield name
    if input_at(node, 6) is not None:
        yield "nonpad_kv_seqlen"


def _require_known_rows(node: ir.Node, query: ir.Value, mask: ir.Value) -> None:
    """Refuse a mask of which it is not known how its rows meet those of the result."""
    if rank(query) not in (3, 4) or rank(mask) not in (2, 3, 4):
        refuse(
            f"The query of {describe_node(node)} has rank {rank(query)}, and its mask, "
            f"{describe_value(mask)}, {rank(mask)}; 3 or 4, and 2 to 4, are needed.",
            node,
        )
    if rank(query) == 3 and rank(mask) != 2 and static_dim(mask, -3) != 1:
        refuse(
            f"That the heads of {describe_node(node)} share the mask, {describe_value(mask)}, is "
            "not proved; its result has them side by side, so that they must.",
            node,
        )


def _sees_a_key(op: RewriterContext, mask: ir.Value, query: ir.Value) -> ir.Value:
    """Return whether each query sees a key, as it broadcasts against the result."""
    assert mask.shape is not None
    numbers = make(
        op,
        "Cast",
        [mask],
        (ir.DataType.INT32, mask.shape),
        attributes={"to": int(ir.DataType.INT32)},
    )
    shape = ir.Shape([*mask.shape[:-1], 1])
    highest = make(
        op,
        "ReduceMax",
        [numbers, make_int64s(op, [-1])],
        (ir.DataType.INT32, shape),
        attributes={"keepdims": 1},
    )
    if rank(query) == 3 and len(shape) == 4:
        # [B, 1, S, 1] -> [B, S, 1]
        shape = ir.Shape([shape[0], *shape[2:]])
        highest = make(op, "Squeeze", [highest, make_int64s(op, [1])], (ir.DataType.INT32, shape))
    to_bool = {"to": int(ir.DataType.BOOL)}
    return make(op, "Cast", [highest], (ir.DataType.BOOL, shape), attributes=to_bool)
