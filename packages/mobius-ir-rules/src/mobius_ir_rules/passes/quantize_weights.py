"""`QuantizeWeights`: products with float weights -> `MatMulNBits`; lookups and experts too.

**Before**

```
h = Gather (embed, ids)
y = MatMul (x, w)                                       # w [K, N]; or transposed, or FusedMatMul
z = mobius.moe.RoutedExperts (y, chosen, share, fc1, fc2)
```

**After**

```
h = com.microsoft.GatherBlockQuantized <block_size = 32, ...> (embed_q, ids, embed_scales)
y = com.microsoft.MatMulNBits <K, N, bits = 4, block_size = 32> (x, w_q, w_scales)
z = mobius.moe.RoutedExperts <fc1_bits = 4, fc1_block_size = 32, ...> (
    y, chosen, share, fc1_q, fc2_q, "", "", fc1_scales, fc2_scales)
```

An asymmetric format adds zero points. The new initializers are computed while they are read, from
weights that may not be loaded yet. A weight that several nodes use is quantized once.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Callable, Mapping

import onnx_ir as ir

from mobius_ir_rules.block_quantization import BlockFormat
from mobius_ir_rules.expressions import Expression, Reshape
from mobius_ir_rules.functions.routed_experts import INPUTS, ROUTED_EXPERTS
from mobius_ir_rules.lazy import DerivedTensor
from mobius_ir_rules.match_log import Refusal
from mobius_ir_rules.passes.graphs import unique_name, value_names
from mobius_ir_rules.passes.weight_uses import (
    Use,
    UseKind,
    WeightUse,
    expression_of_rows,
    find_uses,
)
from mobius_ir_rules.quantized_weights import QuantizedWeight, quantize_weight
from mobius_ir_rules.storage import bytes_of
from mobius_ir_rules.values import MICROSOFT, describe_node, node_name

__all__ = ["Choose", "QuantizeResult", "QuantizeWeights", "UseKind", "WeightUse"]

_TABLE = UseKind.TABLE
# What must be a whole number of blocks, and what reports call it.
_WHOLE_BLOCKS = {UseKind.TABLE: "table", UseKind.EXPERTS: "weight of experts"}

Choose = Callable[[WeightUse], BlockFormat | str | None]
"""Says how a weight is quantized for a use, or, in a full sentence, why it is not.

`None` where nobody asked for it, which is not reported.
"""


@dataclasses.dataclass
class QuantizeResult(ir.passes.PassResult):
    """Result of `QuantizeWeights`.

    Attributes:
        applications: Number of uses of a weight that read integers now.
        refusals: The uses that stayed, in graph order.
    """

    applications: int = 0
    refusals: tuple[Refusal, ...] = ()


class QuantizeWeights(ir.passes.InPlacePass):
    """Quantizes the weights of products and experts and, where that is asked for, of lookups.

    Run `FoldWeights` before, so that packed and transposed weights are initializers.

    Left alone, and reported, is what `choose` turns down; a product that transposes or scales its
    other operand; a weight that is an input of the graph, is no matrix of floats, or is read by a
    node of another kind too, because it would be stored twice; a table, or a weight of experts,
    whose rows are no whole number of blocks. A table that is looked up as floats
    is no such reader: a tied head gets integers of its own beside it.
    """

    def __init__(self, choose: Choose, *, accuracy_level: int = 0) -> None:
        """Configure the pass.

        Args:
            choose: Decides about each use.
            accuracy_level: Attribute of MatMulNBits; it is left out for 0, the default.
        """
        super().__init__()
        self._choose = choose
        self._accuracy_level = accuracy_level

    def call(self, model: ir.Model) -> QuantizeResult:
        """Run the pass."""
        refused: dict[Use, str] = {}
        uses: dict[ir.Value, list[Use]] = collections.defaultdict(list)
        order: list[Use | tuple[ir.Node, str]] = []
        for found in find_uses(model):
            order.append(found)
            if isinstance(found, Use):
                uses[found.weight].append(found)
        maker = _Maker(model, self._accuracy_level)
        for weight, group in uses.items():
            forms = self._decide(weight, group, refused)
            for use in group:
                if use in forms:
                    maker.replace(use, forms[use])
        maker.drop_unused(uses)
        if maker.changed_experts:
            # A body that the model has is that of calls with floats; `FUNCTIONS` makes others.
            model.functions.pop((*ROUTED_EXPERTS, ""), None)
        if maker.count:
            model.graph.opset_imports.setdefault(MICROSOFT, 1)
        stayed = [
            _refusal(each.node, refused[each]) if isinstance(each, Use) else _refusal(*each)
            for each in order
            if not isinstance(each, Use) or each in refused
        ]
        return QuantizeResult(model, maker.count > 0, maker.count, tuple(stayed))

    def _decide(
        self, weight: ir.Value, group: list[Use], refused: dict[Use, str]
    ) -> Mapping[Use, BlockFormat]:
        """Return the format for each use that may change; put the others into `refused`."""
        other = _other_reader(weight, {use.node for use in group})
        forms: dict[Use, BlockFormat] = {}
        for use in group:
            chosen = self._choose(use.describe())
            if chosen is None:
                continue
            if isinstance(chosen, str):
                refused[use] = chosen
            elif other is not None:
                refused[use] = (
                    f"The weight '{weight.name}' of {describe_node(use.node)} is read by "
                    f"{describe_node(other)} too; products, lookups and experts alone are needed, "
                    "because it would be stored twice."
                )
            elif use.kind in _WHOLE_BLOCKS and use.describe().columns % chosen.block_size:
                refused[use] = (
                    f"The rows of the {_WHOLE_BLOCKS[use.kind]} '{weight.name}' have "
                    f"{use.describe().columns} numbers; a multiple of the block size, "
                    f"{chosen.block_size}, is needed."
                )
            else:
                forms[use] = chosen
        floats = [use.node for use in group if use in refused and use.kind is not _TABLE]
        for use in group if floats else ():
            if use.kind is _TABLE and forms.pop(use, None) is not None:
                refused[use] = (
                    f"The table '{weight.name}' is the weight of {describe_node(floats[0])} too, "
                    "which stays as it is; a table whose other readers are quantized is needed, "
                    "because it would be stored twice."
                )
        return forms


class _Maker:
    """Makes the new nodes and initializers of one model."""

    def __init__(self, model: ir.Model, accuracy_level: int) -> None:
        self._names = value_names(model.graph)
        self._accuracy_level = accuracy_level
        self._weights: dict[tuple[ir.Value, bool, BlockFormat], QuantizedWeight] = {}
        self._values: dict[tuple[Expression, str], ir.Value] = {}
        self.count = 0
        self.changed_experts = False

    def replace(self, use: Use, form: BlockFormat) -> None:
        """Let the use's node, or one in its place, read integers."""
        key = (use.weight, use.turned, form)
        if key not in self._weights:
            rows = expression_of_rows(use.weight, turned=use.turned)
            self._weights[key] = quantize_weight(rows, form)
        self.count += 1
        if use.kind is UseKind.EXPERTS:
            self._change_experts(use, self._weights[key])
            return
        make = self._gather if use.kind is _TABLE else self._product
        old = use.node
        new = make(use, self._weights[key])
        assert old.graph is not None
        ir.convenience.replace_nodes_and_values(
            old.graph, old, [old], [new], old.outputs, new.outputs
        )

    def drop_unused(self, weights: Mapping[ir.Value, object]) -> None:
        """Take weights out of their graphs that nothing reads any more, their transposes too."""
        for weight in weights:
            for user in [user for user, _ in weight.uses()]:
                if user.op_type == "Transpose" and not _is_used(user.outputs[0]):
                    assert user.graph is not None
                    user.graph.remove(user, safe=True)
            if not weight.uses() and not weight.is_graph_output():
                assert isinstance(weight.graph, ir.Graph)
                del weight.graph.initializers[str(weight.name)]

    def _product(self, use: Use, weight: QuantizedWeight) -> ir.Node:
        form = weight.form
        attributes: dict[str, int] = {
            "K": weight.k,
            "N": weight.packed.shape[0],
            "bits": form.bits,
            "block_size": form.block_size,
        }
        if self._accuracy_level:
            attributes["accuracy_level"] = self._accuracy_level
        inputs = [
            use.node.inputs[0],
            self._initializer(use, weight.packed, "qweight"),
            self._initializer(use, weight.scales, "scales"),
        ]
        if weight.zero_points is not None:
            inputs.append(self._initializer(use, weight.zero_points, "zero_points"))
        return _node("MatMulNBits", inputs, attributes, use.node)

    def _gather(self, use: Use, weight: QuantizedWeight) -> ir.Node:
        form, rows = weight.form, weight.packed.shape[0]
        attributes = {
            "gather_axis": 0,
            "quantize_axis": 1,
            "block_size": form.block_size,
            "bits": form.bits,
        }
        # Initializers of its own, which are stored in the bytes of a tied head's.
        data = Reshape(weight.packed, (rows, weight.k * form.bits // 8))
        inputs = [
            self._initializer(use, data, "rows.qweight"),
            use.node.inputs[1],
            self._initializer(use, weight.scales, "rows.scales"),
        ]
        if weight.zero_points is not None:
            inputs.append(self._initializer(use, weight.zero_points, "rows.zero_points"))
        return _node("GatherBlockQuantized", inputs, attributes, use.node)

    def _change_experts(self, use: Use, weight: QuantizedWeight) -> None:
        """Give the node the integers of one of its layers; the other is a use of its own."""
        self.changed_experts = True
        node, layer, form = use.node, use.layer, weight.form
        assert use.weight.shape is not None
        stack = use.weight.shape.numpy()[:2]  # experts, rows
        parts = {
            layer: (weight.packed, weight.k * form.bits // 8, "qweight"),
            f"{layer}_scales": (weight.scales, form.blocks(weight.k), "scales"),
        }
        if weight.zero_points is not None:
            size = form.zero_point_bytes(weight.k)
            parts[f"{layer}_zero_points"] = (weight.zero_points, size, "zero_points")
        node.resize_inputs(max(len(node.inputs), *(INPUTS.index(name) + 1 for name in parts)))
        for name, (expression, size, suffix) in parts.items():
            value = self._initializer(use, Reshape(expression, (*stack, size)), suffix)
            node.replace_input_with(INPUTS.index(name), value)
        node.attributes.add(ir.AttrInt64(f"{layer}_bits", form.bits))
        node.attributes.add(ir.AttrInt64(f"{layer}_block_size", form.block_size))

    def _initializer(self, use: Use, expression: Expression, suffix: str) -> ir.Value:
        """Return the initializer of an expression, a new one where there is none yet."""
        key = (bytes_of(expression), suffix)
        if key not in self._values:
            graph = use.weight.graph
            assert isinstance(graph, ir.Graph)
            stem = re.sub(r"\.weight$", "", str(use.weight.name))
            name = unique_name(f"{stem}.{suffix}", self._names)
            value = ir.Value(
                name=name,
                type=ir.TensorType(expression.dtype),
                shape=ir.Shape(expression.shape),
                const_value=DerivedTensor(expression, name),
            )
            graph.initializers.add(value)
            self._values[key] = value
        return self._values[key]


def _node(
    op_type: str, inputs: list[ir.Value | None], attributes: Mapping[str, int], old: ir.Node
) -> ir.Node:
    """Return a node of com.microsoft that takes the place and the name of `old`."""
    return ir.Node(
        MICROSOFT,
        op_type,
        inputs,
        [ir.AttrInt64(name, value) for name, value in attributes.items()],
        num_outputs=1,
        name=old.name,
        metadata_props=dict(old.metadata_props),
    )


def _other_reader(weight: ir.Value, known: set[ir.Node]) -> ir.Node | None:
    """Return a node that reads the weight, or its transpose, and is not one of `known`."""
    for user, _ in weight.uses():
        readers = [user]
        if user not in known and user.op_type == "Transpose":
            readers = [reader for reader, _ in user.outputs[0].uses()]
        for reader in readers:
            if reader not in known:
                return reader
    return None


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _refusal(node: ir.Node, reason: str) -> Refusal:
    operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    return Refusal("QuantizeWeights", node_name(node), operator, reason)
