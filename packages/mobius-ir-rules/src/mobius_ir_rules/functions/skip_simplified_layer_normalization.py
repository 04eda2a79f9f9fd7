"""Body of `com.microsoft::SkipSimplifiedLayerNormalization`: residual Add, then RMS norm.

    output, mean, inv_std_var, input_skip_bias_sum =
        SkipSimplifiedLayerNormalization(input, skip, gamma; epsilon)

`input`, `skip`, `output` and the sum have one float type and shape `[..., hidden]`, `gamma` is
`[hidden]`. The statistics are float32 `[..., 1]`, as ONNX Runtime's CPU kernel fills them: its
mean is zero, because a simplified norm subtracts none. The operator's fourth input, `bias`, is
not supported: a body cannot ask whether it was given.

The square is taken in float32 whatever the type is: a float16 row of magnitude 300 would
overflow.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function, ref_float, root_of_mean_square
from mobius_ir_rules.values import MICROSOFT

SKIP_SIMPLIFIED_LAYER_NORMALIZATION = (MICROSOFT, "SkipSimplifiedLayerNormalization")


def skip_simplified_layer_normalization(opset_version: int) -> ir.Function:
    """Return the three-input body of SkipSimplifiedLayerNormalization for `opset_version`."""

    def body(
        op: OpBuilder, x: ir.Value, skip: ir.Value, gamma: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        total = op.Add(x, skip)
        wide = op.Cast(total, to=ir.DataType.FLOAT)
        root = root_of_mean_square(op, wide, opset_version)
        mean = op.ConstantOfShape(op.Shape(root))
        if opset_version >= 23:
            output = op.RMSNormalization(
                total, gamma, axis=-1, stash_type=1, epsilon=ref_float("epsilon", "epsilon")
            )
        else:
            output = op.Mul(op.CastLike(op.Div(wide, root), total), gamma)
        return output, mean, op.Reciprocal(root), total

    return make_function(
        SKIP_SIMPLIFIED_LAYER_NORMALIZATION,
        ["input", "skip", "gamma"],
        ["output", "mean", "inv_std_var", "input_skip_bias_sum"],
        [ir.AttrFloat32("epsilon", 1e-12)],
        body,
        opset_version,
    )
