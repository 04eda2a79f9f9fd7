"""A compiler of its own that takes rules from mobius_ir_rules: an ONNX file in, a better one out.

Usage: python examples/embedding/tiny_compiler.py IN.onnx OUT.onnx

Needs mobius-ir-rules alone. What such a compiler decides for itself is which rules its runtime has
kernels for; the rules decide where they are sound, and say where they are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, rewrite

import mobius_ir_rules as rules
from mobius_ir_rules import passes

# This imaginary runtime has fused norms and GELUs, and no matrix product with a transposed operand.
RULES: Sequence[Callable[[], Sequence[RewriteRule]]] = (
    rules.skip_norm_rules,
    rules.skip_layer_norm_rules,
    rules.gelu_rules,
    rules.bias_gelu_rules,
)


def compile_model(model: ir.Model) -> list[rules.Refusal]:
    """Improve `model` in place; return what was found and left alone, with the reasons."""
    passes.InferShapes()(model)
    passes.EliminateCommonSubexpressions()(model)
    refused: list[rules.Refusal] = []
    for factory in RULES:
        rewrite(model, factory())
        refused += rules.refusals(model, factory())
    passes.FoldWeights()(model)
    passes.RemoveUnused()(model)
    rules.AttachFunctions()(model)  # whoever lacks a fused operator can expand it
    return refused


def main() -> None:
    """Read, compile, write, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("target")
    arguments = parser.parse_args()
    model = ir.load(arguments.source)
    before = sum(1 for _ in model.graph)
    refused = compile_model(model)
    ir.save(model, arguments.target)
    print(f"{before} -> {sum(1 for _ in model.graph)} nodes")
    for refusal in refused:
        print(f"left alone: {refusal}")


if __name__ == "__main__":
    main()
