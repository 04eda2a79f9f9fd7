"""`rotary_embedding_to_primitives_rules()`: RotaryEmbedding -> Gather, Split, Mul, Add.

For targets and opsets without `RotaryEmbedding`, which exists from opset 23 on. (For those that
have com.microsoft's, see `rotary_embedding_to_microsoft`.)

**Before**

```
y = RotaryEmbedding <num_heads = 4> (x, cos, sin, position_ids)
```

**After** (`D` channels a head, of which the first `2 * half` are rotated):

```
c = Unsqueeze (Gather (cos, position_ids), [2])
s = Unsqueeze (Gather (sin, position_ids), [2])
left, right, rest = Split <axis = -1> (Reshape (x, [0, 0, 4, D]), [half, half, D - 2 * half])
real = Sub (Mul (left, c), Mul (right, s))
imaginary = Add (Mul (left, s), Mul (right, c))
y = Reshape (Concat <axis = -1> (real, imaginary, rest), [0, 0, 4 * D])
```

Nothing is transposed: a 4-D `x`, `[batch, heads, sequence, D]`, gets its tables unsqueezed at axis
1 instead. Interleaved pairs are split off a last axis of two. Without `position_ids` the tables
are `[batch, sequence, half]` already. The tables of a model's rotations are gathered alike, so that
common subexpressions are merged across layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext

from mobius_ir_rules.rule import Plan, Rule, refuse, standard
from mobius_ir_rules.values import (
    Declaration,
    describe_node,
    describe_value,
    input_at,
    int_attribute,
    like,
    make,
    make_all,
    make_int64s,
    rank,
    static_dim,
)


def rotary_embedding_to_primitives_rules() -> list[Rule]:
    """Return the rules of this module."""
    return [RotaryEmbeddingToPrimitives()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryEmbeddingPlan(Plan):
    """One RotaryEmbedding node, every input and attribute of it.

    Attributes:
        x: `[batch, sequence, heads * head_size]` or `[batch, heads, sequence, head_size]`.
        cos: `[positions, width / 2]` with `positions`, else `[batch, sequence, width / 2]`.
        sin: As `cos`.
        positions: int64 `[batch, sequence]`, `None` where the tables need none.
        heads: Number of heads, 0 where a 4-D `x` does not say.
        head_size: Channels of a head.
        width: How many of them are rotated.
        interleaved: Whether pairs are neighbours; otherwise they are half a width apart.
    """

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    positions: ir.Value | None
    heads: int
    head_size: int
    width: int
    interleaved: bool


def plan_rotary_embedding(node: ir.Node) -> RotaryEmbeddingPlan | None:
    """Read a RotaryEmbedding node; `None` where it lacks an input that it must have.

    Raises:
        RefusedError: When ranks or sizes are not known, or contradict each other.
    """
    x, cos, sin, positions = (input_at(node, index) for index in range(4))
    if x is None or cos is None or sin is None:
        return None
    if rank(x) not in (3, 4):
        refuse(
            f"The input of {describe_node(node)}, {describe_value(x)}, has the rank {rank(x)}; 3 "
            "or 4 is needed.",
            node,
        )
    _require_tables(node, cos, sin, positions)
    heads, head_size = _heads(node, x)
    width = int_attribute(node, "rotary_embedding_dim", 0) or head_size
    if width % 2 or width > head_size:
        refuse(
            f"{describe_node(node)} rotates {width} channels of heads of {head_size}; an even "
            "number of at most that size is needed.",
            node,
        )
    for table in (cos, sin):
        if static_dim(table, -1) not in (None, width // 2):
            refuse(
                f"{describe_node(node)} rotates {width} channels by a table, "
                f"{describe_value(table)}, of the width {static_dim(table, -1)}; half as many "
                "columns are needed.",
                node,
            )
    return RotaryEmbeddingPlan(
        root=node,
        replaced=(node.outputs[0],),
        x=x,
        cos=cos,
        sin=sin,
        positions=positions,
        heads=heads,
        head_size=head_size,
        width=width,
        interleaved=bool(int_attribute(node, "interleaved", 0)),
    )


class RotaryEmbeddingToPrimitives(Rule):
    """Decompose one RotaryEmbedding node, 3-D or 4-D, full or partial, of either pairing."""

    roots = (("", "RotaryEmbedding"),)
    emits = standard("Add", "Concat", "Gather", "Mul", "Reshape", "Split", "Sub", "Unsqueeze")

    def plan(self, node: ir.Node) -> RotaryEmbeddingPlan | None:
        """Read the node."""
        return plan_rotary_embedding(node)

    def emit(self, op: RewriterContext, plan: RotaryEmbeddingPlan) -> Sequence[ir.Value]:
        """Make the tables of the positions, the two parts of each pair, and their rotation."""
        emitter = _Emitter(op, plan)
        heads = emitter.split_heads()
        rotated = emitter.interleaved(heads) if plan.interleaved else emitter.halves(heads)
        joined = rotated[0] if len(rotated) == 1 else emitter.concat(rotated, like(heads))
        if rank(plan.x) == 4:
            return [joined]
        shape = make_int64s(op, [0, 0, plan.heads * plan.head_size])
        return [make(op, "Reshape", [joined, shape], like(plan.replaced[0]), name=plan.root.name)]


@dataclasses.dataclass(frozen=True)
class _Emitter:
    """The steps of one decomposition."""

    op: RewriterContext
    plan: RotaryEmbeddingPlan

    def split_heads(self) -> ir.Value:
        """Return x as `[batch, sequence, heads, head_size]`; a 4-D one as it is."""
        plan = self.plan
        x, sizes = plan.x, [plan.heads, plan.head_size]
        if rank(x) == 4:
            return x
        assert x.shape is not None
        shape = ir.Shape([x.shape[0], x.shape[1], *sizes])
        return make(self.op, "Reshape", [x, make_int64s(self.op, [0, 0, *sizes])], (x.dtype, shape))

    def table(self, table: ir.Value) -> ir.Value:
        """Return cos or sin of each token, to be multiplied with the pairs of all heads."""
        op, plan = self.op, self.plan
        tokens = table
        if plan.positions is not None:
            assert plan.positions.shape is not None
            shape = ir.Shape([*plan.positions.shape, plan.width // 2])
            tokens = make(
                op, "Gather", [table, plan.positions], (table.dtype, shape), attributes={"axis": 0}
            )
        assert tokens.shape is not None
        axes = [2 if rank(plan.x) == 3 else 1, *([4] if plan.interleaved else [])]
        sizes = list(tokens.shape)
        for axis in axes:
            sizes.insert(axis, 1)
        return make(
            op, "Unsqueeze", [tokens, make_int64s(op, axes)], (table.dtype, ir.Shape(sizes))
        )

    def halves(self, heads: ir.Value) -> list[ir.Value]:
        """Return the rotated first and second half, and the rest if there is one."""
        half = self.plan.width // 2
        left, right, *rest = self.split(heads, [half, half, *self.rest()])
        return [*self.rotate(left, right), *rest]

    def interleaved(self, heads: ir.Value) -> list[ir.Value]:
        """Return the rotated channels, and the rest if there is one."""
        op, width = self.op, self.plan.width
        turned, *rest = self.split(heads, [width, *self.rest()]) if self.rest() else [heads]
        assert turned.shape is not None
        outer = list(turned.shape[:-1])
        pairs = make(
            op,
            "Reshape",
            [turned, make_int64s(op, [0, 0, 0, width // 2, 2])],
            (turned.dtype, ir.Shape([*outer, width // 2, 2])),
        )
        rotated = self.rotate(*self.split(pairs, [1, 1]))
        woven = self.concat(rotated, like(pairs))
        flat = make(op, "Reshape", [woven, make_int64s(op, [0, 0, 0, width])], like(turned))
        return [flat, *rest]

    def rotate(self, left: ir.Value, right: ir.Value) -> tuple[ir.Value, ir.Value]:
        op, declared = self.op, like(left)
        cos, sin = self.table(self.plan.cos), self.table(self.plan.sin)

        def times(x: ir.Value, table: ir.Value) -> ir.Value:
            return make(op, "Mul", [x, table], declared)

        real = make(op, "Sub", [times(left, cos), times(right, sin)], declared)
        imaginary = make(op, "Add", [times(left, sin), times(right, cos)], declared)
        return real, imaginary

    def rest(self) -> list[int]:
        """Return the number of channels that are not rotated, if any."""
        rest = self.plan.head_size - self.plan.width
        return [rest] if rest else []

    def split(self, x: ir.Value, sizes: Sequence[int]) -> list[ir.Value]:
        assert x.shape is not None
        outer = list(x.shape[:-1])
        declared = [(x.dtype, ir.Shape([*outer, size])) for size in sizes]
        inputs = [x, make_int64s(self.op, sizes)]
        return make_all(self.op, "Split", inputs, *declared, attributes={"axis": -1})

    def concat(self, parts: Sequence[ir.Value], declared: Declaration) -> ir.Value:
        return make(self.op, "Concat", parts, declared, attributes={"axis": -1})


def _require_tables(
    node: ir.Node, cos: ir.Value, sin: ir.Value, positions: ir.Value | None
) -> None:
    wanted = 3 if positions is None else 2
    if rank(cos) != wanted or rank(sin) != wanted:
        given = "without" if positions is None else "with"
        refuse(
            f"The tables of {describe_node(node)}, {given} position_ids, have the ranks "
            f"{rank(cos)} and {rank(sin)}; {wanted} is needed for both.",
            node,
        )
    if positions is not None and rank(positions) != 2:
        refuse(
            f"The position_ids of {describe_node(node)}, {describe_value(positions)}, have the "
            f"rank {rank(positions)}; 2 is needed.",
            node,
        )


def _heads(node: ir.Node, x: ir.Value) -> tuple[int, int]:
    """Return number and size of the heads, proved from the last dimension."""
    width = static_dim(x, -1)
    if width is None:
        refuse(
            f"The last dimension of the input of {describe_node(node)}, {describe_value(x)}, is "
            "not known; it is needed.",
            node,
        )
    if rank(x) == 4:
        return static_dim(x, 1) or 0, width
    heads = int_attribute(node, "num_heads", 0)
    if heads <= 0 or width % heads:
        refuse(
            f"{describe_node(node)} has num_heads = {heads} and an input of the width {width}; a "
            "divisor of it is needed.",
            node,
        )
    return heads, width // heads
