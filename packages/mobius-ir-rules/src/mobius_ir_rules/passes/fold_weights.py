"""`FoldWeights`: operators that only move or cast weights -> weights that are stored that way."""

from __future__ import annotations

import math

import onnx_ir as ir

from mobius_ir_rules.expressions import Expression
from mobius_ir_rules.lazy import DerivedTensor, expression_of, is_small_materialized
from mobius_ir_rules.passes.graphs import detach, unique_name, value_names
from mobius_ir_rules.passes.packed_names import packed_name
from mobius_ir_rules.passes.weight_ops import FOLDABLE, fold_node


class FoldWeights(ir.passes.InPlacePass):
    """Replace Transpose, Concat, Cast, Reshape, Squeeze, Unsqueeze, Slice and Split of weights.

    The result is an initializer with a `DerivedTensor`; no data are read or computed, so it does
    not matter whether weights are loaded. A result of at most `small` bytes, of tensors in memory,
    is computed at once.

    The file never grows by a second copy: a weight that has another user (a tied embedding that
    is gathered from and transposed for the head) keeps its node, which runs at run time. Kept are
    also nodes of function bodies, which have no initializers; nodes that make an output of a
    graph; weights that are inputs of the model, which a caller may replace; and casts that are
    not exact (`mobius_ir_rules.expressions.can_cast`).

    A folded weight that had one user keeps its name. A concatenation takes what the names share
    (`...q_proj.weight`, `...k_proj.weight`, `...v_proj.weight` give `...qkv_proj.weight`).
    """

    def __init__(self, small: int = 1024) -> None:
        """Configure the pass.

        Args:
            small: Largest result, in bytes, that is computed at once if its sources are in memory.
        """
        super().__init__()
        self._small = small

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        names: set[str] | None = None
        modified = False
        for graph in model.graphs():
            folded: list[ir.Node] = []
            for node in graph:
                if (
                    node.domain
                    or node.op_type not in FOLDABLE
                    or any(output.is_graph_output() for output in node.outputs)
                ):
                    continue
                sources = _sources(node)
                if sources is None:
                    continue
                results = fold_node(node, [expression for _, expression in sources])
                if results is None or not _saves(sources, node):
                    continue
                names = value_names(model.graph) if names is None else names
                self._replace(node, [value for value, _ in sources], results, names)
                folded.append(node)
            if folded:
                graph.remove(folded)
                modified = True
        return ir.passes.PassResult(model, modified)

    def _replace(
        self,
        node: ir.Node,
        sources: list[ir.Value],
        results: list[Expression],
        names: set[str],
    ) -> None:
        owner = sources[0].graph
        assert isinstance(owner, ir.Graph)
        small = all(is_small_materialized(value.const_value, self._small) for value in sources)
        uses = [(output, output.uses()) for output in node.outputs]
        for _, users in uses:
            for user, index in users:
                user.replace_input_with(index, None)
        detach(node)
        for value in sources:
            if not value.uses() and str(value.name) in owner.initializers:
                names.discard(str(value.name))
        preferred = _preferred_names(sources, len(results))
        replaced: dict[str, ir.Value] = {}
        for (output, users), expression, name in zip(uses, results, preferred, strict=True):
            if not users:
                continue
            name = unique_name(name, names)
            tensor: ir.TensorProtocol = DerivedTensor(expression, name)
            if small and tensor.nbytes <= self._small:
                tensor = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
            value = ir.Value(
                name=name,
                type=ir.TensorType(expression.dtype),
                shape=ir.Shape(expression.shape),
                const_value=tensor,
                metadata_props=dict(output.metadata_props),
            )
            for user, index in users:
                user.replace_input_with(index, value)
            replaced[name] = value
        owner.initializers.update(replaced)
        for value in sources:
            if not value.uses() and value.is_initializer():
                del owner.initializers[str(value.name)]


def _sources(node: ir.Node) -> list[tuple[ir.Value, Expression]] | None:
    """Return the weights that `node` reads, with their expressions, or None if not all are."""
    read = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    sources = []
    for value in read:
        if value is None or not value.is_initializer():
            return None
        if value.is_graph_input() or value.is_graph_output():
            return None
        expression = expression_of(value)
        if expression is None:
            return None
        sources.append((value, expression))
    same_graph = len({id(value.graph) for value, _ in sources}) == 1
    return sources if same_graph else None


def _saves(sources: list[tuple[ir.Value, Expression]], node: ir.Node) -> bool:
    """Whether the sources can go: no other users, or only slices that together are no larger."""
    for value, expression in sources:
        if len(value.uses()) == 1:
            continue
        size = 0
        for user in value.consumers():
            if (user.domain, user.op_type) != ("", "Slice") or node.op_type != "Slice":
                return False
            results = fold_node(user, [expression]) if user.inputs[0] is value else None
            if results is None or user.outputs[0].is_graph_output():
                return False
            size += math.prod(results[0].shape)
        if size > math.prod(expression.shape):
            return False
    return True


def _preferred_names(sources: list[ir.Value], count: int) -> list[str]:
    names = [str(value.name) for value in sources]
    if len(names) > 1:
        return [packed_name(names)]
    # Parts of one weight: the first of several users must not take the name that is still used.
    if count > 1 or sources[0].uses():
        return [f"{names[0]}.{index}" for index in range(count)]
    return names
