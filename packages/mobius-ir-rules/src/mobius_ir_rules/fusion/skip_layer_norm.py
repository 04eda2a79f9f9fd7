"""SkipLayerNorm: a residual Add read by a LayerNormalization -> SkipLayerNormalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter import RewriterContext, RewriteRule

from mobius_ir_rules.fusion.residual import norms_of, require_fusable, require_vector
from mobius_ir_rules.rule import Plan, Rule, refuse
from mobius_ir_rules.values import (
    MICROSOFT,
    describe_node,
    float_attribute,
    input_at,
    like,
    make,
    make_all,
    static_dim,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _SkipLayerNormPlan(Plan):
    gamma: ir.Value
    beta: ir.Value | None
    epsilon: float
    name: str | None


class SkipLayerNorm(Rule):
    """Fuse a residual Add with the layer norm that reads it, within a layer and across layers.

    Before:

        sum = Add(a, b)
        y = LayerNormalization <axis = -1, epsilon, stash_type = 1> (sum, gamma, beta)
        ... other uses of sum ...

    After:

        y, "", "", sum = com.microsoft.SkipLayerNormalization <epsilon> (a, b, gamma, beta)

    The fused node stands where the Add stood, so whatever reads the sum still comes later. A
    second norm of the same sum stays and reads the fused node's sum. `a` and `b` have one shape of
    rank 3 and one of the types FLOAT, FLOAT16, BFLOAT16, which is also that of `gamma` and `beta`,
    `[hidden]`. A norm without `beta` gets one of zeros: the operator's function body has one
    number of inputs for all its calls.
    """

    roots = (("", "Add"),)
    emits = ((MICROSOFT, "SkipLayerNormalization"),)

    def plan(self, node: ir.Node) -> _SkipLayerNormPlan | None:
        """Return what to do with the Add, `None` where no LayerNormalization reads it."""
        norms = norms_of(node, "LayerNormalization")
        if not norms:
            return None
        norm = norms[0]
        require_fusable(node, norm, ranks=(3,))
        gamma, beta = input_at(norm, 1), input_at(norm, 2)
        require_vector(gamma, "scale", node, norm)
        assert gamma is not None
        if beta is not None:
            require_vector(beta, "bias", node, norm)
        elif static_dim(gamma, 0) is None:
            refuse(
                f"{describe_node(norm)} has no bias and a scale of shape {gamma.shape}; the size "
                "must be known to make a bias of zeros.",
                norm,
            )
        return _SkipLayerNormPlan(
            root=node,
            replaced=(norm.outputs[0], node.outputs[0]),
            absorbed=(norm,),
            gamma=gamma,
            beta=beta,
            epsilon=float_attribute(norm, "epsilon", 1e-5),
            name=norm.name,
        )

    def emit(self, op: RewriterContext, plan: _SkipLayerNormPlan) -> Sequence[ir.Value]:
        """Make the fused node."""
        normalised, total = plan.replaced
        results = make_all(
            op,
            "SkipLayerNormalization",
            [*plan.root.inputs, plan.gamma, plan.beta or _zeros(op, plan.gamma)],
            like(normalised),
            (None, None),
            (None, None),
            like(total),
            domain=MICROSOFT,
            attributes={"epsilon": plan.epsilon},
            name=plan.name,
        )
        return [results[0], results[3]]


def _zeros(op: RewriterContext, gamma: ir.Value) -> ir.Value:
    """Make a constant of zeros like `gamma`."""
    assert gamma.dtype is not None
    assert gamma.shape is not None
    zeros = ir.tensor(np.zeros(gamma.shape.numpy(), gamma.dtype.numpy()), dtype=gamma.dtype)
    return make(op, "Constant", [], like(gamma), attributes={"value": zeros})


def skip_layer_norm_rules() -> list[RewriteRule]:
    """Return the rules of this file, for `onnxscript.rewriter.rewrite`."""
    return [SkipLayerNorm()]
