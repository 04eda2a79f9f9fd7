"""`CompleteOpsetImports`: imports that runtimes do without -> imports that the standard wants.

Graphs in circulation import ONNX's own operators as `ai.onnx`, or use operators of com.microsoft
without importing the domain; ONNX Runtime loads both, ONNX's checker and shape inference do not.
"""

from __future__ import annotations

import onnx_ir as ir

from mobius_ir_rules.passes.graphs import GraphLike, all_nodes, roots
from mobius_ir_rules.passes.unused import used_domains
from mobius_ir_rules.values import MICROSOFT

_ALIAS = "ai.onnx"
_ONLY_VERSION = {MICROSOFT: 1}
"""Domains of which there is one version."""


class CompleteOpsetImports(ir.passes.InPlacePass):
    """Import `""` instead of `ai.onnx`, and com.microsoft where a node is of that domain.

    A graph without an import of ONNX's own operators, whose nodes have such, is left alone: which
    version it means is not known, except in a function, which then has the model's.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass."""
        modified = False
        for node in (node for root in roots(model) for node in all_nodes(root)):
            if node.domain == _ALIAS:
                node.domain = ""
                modified = True
        for root in roots(model):
            modified |= _complete(root, model)
        return ir.passes.PassResult(model, modified)


def _complete(root: GraphLike, model: ir.Model) -> bool:
    imports = root.opset_imports
    before = dict(imports)
    if _ALIAS in imports:
        version = imports.pop(_ALIAS)
        imports.setdefault("", version)
    known = dict(_ONLY_VERSION)
    if "" in model.opset_imports:
        known[""] = model.opset_imports[""]
    for domain in sorted(used_domains(root) - set(imports)):
        if domain in known:
            imports[domain] = known[domain]
    return before != dict(imports)
