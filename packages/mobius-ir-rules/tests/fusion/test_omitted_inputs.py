"""C101: no rule breaks on nodes with inputs or outputs left out, wherever they stand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRule

from mobius_ir_rules.fusion.bias_gelu import bias_gelu_rules
from mobius_ir_rules.fusion.fused_mat_mul import fused_matmul_rules
from mobius_ir_rules.fusion.gelu import gelu_rules
from mobius_ir_rules.fusion.skip_bias import skip_bias_rules
from mobius_ir_rules.fusion.skip_layer_norm import skip_layer_norm_rules
from mobius_ir_rules.fusion.skip_norm import skip_norm_rules
from mobius_ir_rules.match_log import refusals

# Pairs of operators that make a candidate, the first one's result read by the second.
PAIRS = [
    (skip_norm_rules, ("", "Add"), ("", "RMSNormalization")),
    (skip_layer_norm_rules, ("", "Add"), ("", "LayerNormalization")),
    (skip_bias_rules, ("", "Add"), ("com.microsoft", "SkipLayerNormalization")),
    (gelu_rules, ("", "Erf"), ("", "Mul")),
    (gelu_rules, ("", "Tanh"), ("", "Div")),
    (bias_gelu_rules, ("", "Add"), ("", "Gelu")),
    (bias_gelu_rules, ("", "Add"), ("com.microsoft", "FastGelu")),
    (fused_matmul_rules, ("", "Transpose"), ("", "MatMul")),
    (fused_matmul_rules, ("", "MatMul"), ("", "Mul")),
    (fused_matmul_rules, ("com.microsoft", "FusedMatMul"), ("", "Div")),
]


def _model(
    first: tuple[str, str],
    second: tuple[str, str],
    before: Sequence[bool],
    after: Sequence[bool],
    outputs: int,
    typed: bool,
) -> ir.Model:
    """Return a model of both nodes; a false flag is an omitted input."""
    x = ir.val("x", ir.DataType.FLOAT if typed else None, [2, 3, 4] if typed else None)
    made = ir.node(first[1], [x if given else None for given in before], domain=first[0])
    inner = made.outputs[0]
    read = [
        inner if given and index == 0 else x if given else None for index, given in enumerate(after)
    ]
    if not any(value is inner for value in read):
        read.append(inner)
    last = ir.node(second[1], read, domain=second[0], num_outputs=outputs)
    graph = ir.Graph(
        [x],
        [last.outputs[0]],
        nodes=[made, last],
        opset_imports={"": 24, "com.microsoft": 1},
    )
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(("factory", "first", "second"), PAIRS)
def test_omitted_inputs_and_outputs(
    factory: Callable[[], list[RewriteRule]],
    first: tuple[str, str],
    second: tuple[str, str],
    typed: bool,
) -> None:
    """Every mask of up to two inputs before and three after, one to four outputs."""
    masks = [list(itertools.product([False, True], repeat=count)) for count in range(4)]
    for before, after in itertools.product(
        [*masks[0], *masks[1], *masks[2]], [*masks[1], *masks[2], *masks[3]]
    ):
        for outputs in (1, 4):
            model = _model(first, second, before, after, outputs, typed)
            kept = ir.to_proto(model).SerializeToString(deterministic=True)
            for refusal in refusals(model, factory()):
                assert refusal.reason.endswith(".")
            assert ir.to_proto(model).SerializeToString(deterministic=True) == kept
            for rule in factory():
                rule.apply_to_model(model)
