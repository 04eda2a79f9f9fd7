"""`LOWERINGS`: for each operator that some target lacks, the rules that take it to ones it has.

A row looks only at nodes that the target does not run as they are used: in their dtype, with the
attributes and outputs that they have, in the opset that the model is brought down to.

An operator of com.microsoft takes the place of a standard one only where the target says that it
lacks the standard one. Where an older opset is the reason, primitives do: they need no body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule

from mobius.op_support import lacks_of, runs, runs_every_use, runs_node
from mobius.restricted_rules import restricted
from mobius.stage import Target
from mobius.stage_pass import RuleGroup, StageResult
from mobius_ir_rules.fusion.fused_mat_mul import fused_matmul_rules
from mobius_ir_rules.lowering.attention import attention_to_primitives_rules
from mobius_ir_rules.lowering.boolean_mask import boolean_mask_rules
from mobius_ir_rules.lowering.eliminate_shape import eliminate_shape_rules
from mobius_ir_rules.lowering.fused_mat_mul import fused_matmul_to_primitives_rules
from mobius_ir_rules.lowering.gelu import gelu_to_microsoft_rules, gelu_to_primitives_rules
from mobius_ir_rules.lowering.layer_normalization import layer_normalization_to_primitives_rules
from mobius_ir_rules.lowering.logical_or import or_to_primitives_rules
from mobius_ir_rules.lowering.mat_mul_n_bits import mat_mul_n_bits_to_dequantize_rules
from mobius_ir_rules.lowering.opset import LowerOpset, OpsetError
from mobius_ir_rules.lowering.raise_opset import RaiseOpset, obstacles
from mobius_ir_rules.lowering.rms_normalization import rms_normalization_to_primitives_rules
from mobius_ir_rules.lowering.rotary_embedding import rotary_embedding_to_primitives_rules
from mobius_ir_rules.lowering.rotary_embedding_to_microsoft import (
    rotary_embedding_to_microsoft_rules,
)
from mobius_ir_rules.lowering.swish import swish_to_primitives_rules
from mobius_ir_rules.passes import EliminateCommonSubexpressions, RemoveUnused

_MICROSOFT = "com.microsoft"
_BLOCKED_DEQUANTIZE = 21  # the opset that brought block_size to DequantizeLinear

Rules = Sequence[RewriteRule]


@dataclasses.dataclass(frozen=True)
class Lowering:
    """How an operator is taken apart.

    Attributes:
        domain: Domain of the operator.
        op_type: The operator.
        rules: Makes the rules for a target, in order of preference.
        name: Name of the stage; `Lower` and the operator by default.
        use: Where the rules do not take the operator apart but change how it is used: the
            attribute, optional input or output that is wrong, by the name that `Lack` has for it.
        then: Makes passes that run where the rules were applied, before the tidying.
    """

    domain: str
    op_type: str
    rules: Callable[[Target], Rules]
    name: str = ""
    use: str = ""
    then: Callable[[Target], Sequence[ir.passes.PassBase]] = lambda target: ()

    @property
    def stage_name(self) -> str:
        """What traces and reports call the stage."""
        return self.name or f"Lower{self.op_type}"

    def needed(self, target: Target) -> bool:
        """Return whether the target lacks the operator, or some use of it; or this one."""
        if not self.use:
            return not runs_every_use(target, self.domain, self.op_type)
        return runs(target, self.domain, self.op_type) and any(
            lack.attribute == self.use and lack.covers(target.dtype, lack.use)
            for lack in target.capabilities.lacks
            if (lack.domain, lack.op_type) == (self.domain, self.op_type)
        )

    @property
    def needs(self) -> str:
        """When the stage runs, as `Stage.needs` says it."""
        if self.use:
            return f"a target that has {self.op_type} and gets its {self.use} wrong"
        return f"a target that lacks {self.op_type}, or a use of it"

    def make(self, target: Target) -> RuleGroup:
        """Return the pass that takes apart, or changes, what the target does not run."""

        def is_wrong(node: ir.Node) -> bool:
            if runs_node(target, node):
                return False
            return not self.use or runs_node(target, node, without=self.use)

        rules = restricted(self.rules(target), is_wrong)
        tidy = [EliminateCommonSubexpressions(), RemoveUnused()]
        return RuleGroup(rules, [*self.then(target), *tidy])


def _always(factory: Callable[[], Rules]) -> Callable[[Target], Rules]:
    def rules(target: Target) -> Rules:
        del target
        return factory()

    return rules


def _gelu(target: Target) -> Rules:
    # One rule makes both: the exact form and the tanh form are different operators.
    both = all(runs(target, _MICROSOFT, op_type) for op_type in ("Gelu", "FastGelu"))
    if both and lacks_of(target, "", "Gelu"):
        return gelu_to_microsoft_rules()
    return gelu_to_primitives_rules()


def _rotary_embedding(target: Target) -> Rules:
    primitives = rotary_embedding_to_primitives_rules()
    if runs(target, _MICROSOFT, "RotaryEmbedding") and lacks_of(target, "", "RotaryEmbedding"):
        return [*rotary_embedding_to_microsoft_rules(), *primitives]
    return primitives


def fuse_matmul(target: Target) -> Sequence[ir.passes.PassBase]:
    """Let products of a decomposition read what is transposed as it is, where that is possible."""
    if not runs(target, _MICROSOFT, "FusedMatMul"):
        return ()
    return (RuleGroup(fused_matmul_rules()),)


FUSED_MAT_MUL = Lowering(
    _MICROSOFT, "FusedMatMul", _always(fused_matmul_to_primitives_rules), "LowerFusedMatMul"
)
"""Before functions are inlined: the rule makes less of a node than the operator's body."""

BOOLEAN_MASK = Lowering(
    "", "Attention", _always(boolean_mask_rules), "LowerBooleanMask", use="attn_mask"
)
"""Before functions are inlined: the operator that made a mask says that it hides no row."""

MAT_MUL_N_BITS = Lowering(_MICROSOFT, "MatMulNBits", _always(mat_mul_n_bits_to_dequantize_rules))
"""Before functions are inlined: with blocked DequantizeLinear weights stay integers."""


def lowers_mat_mul_n_bits(target: Target) -> bool:
    """Return whether MatMulNBits is taken apart by its rule; in older opsets its body is used."""
    return MAT_MUL_N_BITS.needed(target) and target.result_opset >= _BLOCKED_DEQUANTIZE


LOWERINGS: tuple[Lowering, ...] = (
    Lowering("", "Attention", _always(attention_to_primitives_rules), then=fuse_matmul),
    Lowering("", "RotaryEmbedding", _rotary_embedding),
    Lowering("", "RMSNormalization", _always(rms_normalization_to_primitives_rules)),
    Lowering("", "LayerNormalization", _always(layer_normalization_to_primitives_rules)),
    Lowering("", "Gelu", _gelu),
    Lowering("", "Swish", _always(swish_to_primitives_rules)),
    Lowering("", "Or", _always(or_to_primitives_rules)),
    Lowering("", "Shape", _always(eliminate_shape_rules), "EliminateShape"),
)
"""In this order: what one makes, a later one may take apart further."""


class BringUp(ir.passes.InPlacePass):
    """Takes an older model to the opset that fusions are written for.

    Where that is not possible the model stays as old as it is, and the result says what stands in
    the way.
    """

    def __init__(self, target: Target) -> None:
        """Create the pass."""
        super().__init__()
        self._goal, self._raised = target.raise_goal, target.raised_opset

    def call(self, model: ir.Model) -> StageResult:
        """Raise the opset."""
        if self._raised is None:
            return StageResult(model, False, refusals=tuple(obstacles(model, self._goal)))
        return StageResult(model, RaiseOpset(self._raised)(model).modified)


class BringDown(ir.passes.InPlacePass):
    """Takes the model to an opset that the target runs.

    Where that is not possible and the user did not ask for it, the model stays and the result says
    what stands in the way: another runtime of that name may be newer than the table we know.
    """

    def __init__(self, target: Target) -> None:
        """Create the pass."""
        super().__init__()
        self._opset = target.max_opset
        self._required = target.opset is not None

    def call(self, model: ir.Model) -> StageResult:
        """Lower the opset.

        Raises:
            OpsetError: if the user asked for an opset that lacks what the model needs.
        """
        try:
            result = LowerOpset(self._opset)(model)
        except OpsetError as error:
            if self._required:
                raise
            return StageResult(model, modified=True, refusals=error.refusals)
        return StageResult(model, result.modified)
