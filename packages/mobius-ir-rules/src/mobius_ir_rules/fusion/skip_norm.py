"""SkipNorm: a residual Add read by an RMSNormalization -> SkipSimplifiedLayerNormalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion.residual import norms_of, require_fusable, require_vector
from mobius_ir_rules.rule import Plan, Rule
from mobius_ir_rules.values import MICROSOFT, float_attribute, input_at, like, make_all


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SkipNormPlan(Plan):
    epsilon: float
    name: str | None


class SkipNorm(Rule):
    """Fuse a residual Add with the RMS norm that reads it, within a layer and across layers.

    Before:

        sum = Add(a, b)
        y = RMSNormalization <axis = -1, epsilon, stash_type = 1> (sum, gamma)
        ... other uses of sum ...

    After:

        y, "", "", sum = com.microsoft.SkipSimplifiedLayerNormalization <epsilon> (a, b, gamma)

    The fused node stands where the Add stood, so whatever reads the sum still comes later. A
    second norm of the same sum stays and reads the fused node's sum. `a` and `b` have one shape of
    rank 2 or 3 and one of the types FLOAT, FLOAT16, BFLOAT16, which is also that of `gamma`,
    `[hidden]`. An offset norm, `x * (1 + w)`, is one whose `gamma` is computed.

    The kernels round once where the two operators round twice, so float16 results may differ in
    the last place.
    """

    roots = (("", "Add"),)
    emits = ((MICROSOFT, "SkipSimplifiedLayerNormalization"),)

    def plan(self, node: ir.Node) -> _SkipNormPlan | None:
        """Return what to do with the Add, `None` where no RMSNormalization reads it."""
        norms = norms_of(node, "RMSNormalization")
        if not norms:
            return None
        norm = norms[0]
        require_fusable(node, norm, ranks=(2, 3))
        require_vector(input_at(norm, 1), "scale", node, norm)
        return _SkipNormPlan(
            root=node,
            replaced=(norm.outputs[0], node.outputs[0]),
            absorbed=(norm,),
            epsilon=float_attribute(norm, "epsilon", 1e-5),
            name=norm.name,
        )

    def emit(self, op: RewriterContext, plan: _SkipNormPlan) -> Sequence[ir.Value]:
        """Make the fused node."""
        normalised, total = plan.replaced
        left, right = plan.root.inputs
        gamma = plan.absorbed[0].inputs[1]
        results = make_all(
            op,
            "SkipSimplifiedLayerNormalization",
            [left, right, gamma],
            like(normalised),
            (None, None),
            (None, None),
            like(total),
            domain=MICROSOFT,
            attributes={"epsilon": plan.epsilon},
            name=plan.name,
        )
        return [results[0], results[3]]


def skip_norm_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [SkipNorm()]
