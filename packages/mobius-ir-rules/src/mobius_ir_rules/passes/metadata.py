"""`ClearMetadata`: notes that builders and exporters leave on nodes and values -> gone."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from mobius_ir_rules.passes.graphs import all_nodes, roots, values_of


class ClearMetadata(ir.passes.InPlacePass):
    """Remove doc strings and metadata of nodes and values, in graphs and functions.

    Metadata under a key in `keep` stay: `namespace` is the module path of a node, which viewers
    show. What describes the model, a graph or a function as a whole stays too.
    """

    def __init__(self, keep: Collection[str] = ("namespace",)) -> None:
        """Configure the pass: `keep` holds the metadata keys that stay."""
        super().__init__()
        self._keep = frozenset(keep)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        modified = False
        for root in roots(model):
            items: list[ir.Node | ir.Value] = [*all_nodes(root), *values_of(root)]
            for item in items:
                dropped = [key for key in item.metadata_props if key not in self._keep]
                for key in dropped:
                    del item.metadata_props[key]
                modified |= bool(dropped) or bool(item.doc_string)
                item.doc_string = None
        return ir.passes.PassResult(model, modified)
