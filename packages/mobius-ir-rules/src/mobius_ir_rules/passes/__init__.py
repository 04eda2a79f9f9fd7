"""Graph passes that are not patterns: a model in, the same model in place, and whether it changed.

All of them work on the main graph, subgraphs and functions, keep the model's inputs and outputs
as they are, read no weights, and change nothing when run a second time.
"""

from mobius_ir_rules.passes.cse import EliminateCommonSubexpressions
from mobius_ir_rules.passes.dedup import DeduplicateInitializers
from mobius_ir_rules.passes.fold_constants import FoldConstants
from mobius_ir_rules.passes.fold_weights import FoldWeights
from mobius_ir_rules.passes.identity import EliminateIdentity
from mobius_ir_rules.passes.infer_shapes import InferShapes, ShapeInferenceError
from mobius_ir_rules.passes.inline import InlineFunctions
from mobius_ir_rules.passes.invariants import (
    CheckInvariants,
    InvariantError,
    check_model_invariants,
)
from mobius_ir_rules.passes.metadata import ClearMetadata
from mobius_ir_rules.passes.opset_imports import CompleteOpsetImports
from mobius_ir_rules.passes.select_early import SelectEarly
from mobius_ir_rules.passes.unique_names import make_names_unique
from mobius_ir_rules.passes.unused import RemoveUnused

__all__ = [
    "CheckInvariants",
    "ClearMetadata",
    "CompleteOpsetImports",
    "DeduplicateInitializers",
    "EliminateCommonSubexpressions",
    "EliminateIdentity",
    "FoldConstants",
    "FoldWeights",
    "InferShapes",
    "InlineFunctions",
    "InvariantError",
    "RemoveUnused",
    "SelectEarly",
    "ShapeInferenceError",
    "check_model_invariants",
    "make_names_unique",
]
