"""Body of `com.microsoft::SkipLayerNormalization`: residual Add, then LayerNormalization.

    output, mean, inv_std_var, input_skip_bias_sum =
        SkipLayerNormalization(input, skip, gamma, beta; epsilon)

`input`, `skip`, `output` and the sum have one float type and shape `[..., hidden]`, `gamma` and
`beta` are `[hidden]`. The statistics are float32 `[..., 1]`. `beta` is optional for the operator
but not for the body, and the fifth input, `bias`, is not supported: a body cannot ask whether an
input was given.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript import OpBuilder

from mobius_ir_rules.functions.body import make_function, ref_float
from mobius_ir_rules.values import MICROSOFT

SKIP_LAYER_NORMALIZATION = (MICROSOFT, "SkipLayerNormalization")


def skip_layer_normalization(opset_version: int) -> ir.Function:
    """Return the four-input body of SkipLayerNormalization for `opset_version`."""

    def body(
        op: OpBuilder, x: ir.Value, skip: ir.Value, gamma: ir.Value, beta: ir.Value
    ) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        total = op.Add(x, skip)
        output, mean, inv_std_var = op.LayerNormalization(
            total,
            gamma,
            beta,
            axis=-1,
            stash_type=1,
            epsilon=ref_float("epsilon", "epsilon"),
            _outputs=3,
        )
        return output, mean, inv_std_var, total

    return make_function(
        SKIP_LAYER_NORMALIZATION,
        ["input", "skip", "gamma", "beta"],
        ["output", "mean", "inv_std_var", "input_skip_bias_sum"],
        [ir.AttrFloat32("epsilon", 1e-12)],
        body,
        opset_version,
    )
