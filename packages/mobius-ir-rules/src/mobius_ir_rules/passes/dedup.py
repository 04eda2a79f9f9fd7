"""`DeduplicateInitializers`: small initializers with equal data -> one of them."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from mobius_ir_rules.passes.cse import tensor_key


class DeduplicateInitializers(ir.passes.InPlacePass):
    """Merge initializers of one graph with equal dtype, shape and bytes; the first stays.

    Only tensors that are in memory already and have at most `limit` bytes are compared: weights
    that are lazy or not loaded are neither read nor merged. Graph inputs and outputs stay.
    """

    def __init__(self, limit: int = 64 * 1024) -> None:
        """Configure the pass: `limit` is the size of the largest tensor that is read, in bytes."""
        super().__init__()
        self._limit = limit

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        modified = False
        for graph in model.graphs():
            seen: dict[Hashable, ir.Value] = {}
            for name, value in tuple(graph.initializers.items()):
                if value.is_graph_input() or value.is_graph_output():
                    continue
                key = tensor_key(value.const_value, self._limit)
                if key is None:
                    continue
                first = seen.setdefault(key, value)
                if first is not value:
                    value.replace_all_uses_with(first)
                    del graph.initializers[name]
                    modified = True
        return ir.passes.PassResult(model, modified)
