"""The stage `Quantize`: weights become integers, as the build's configuration says."""

from __future__ import annotations

import onnx_ir as ir

from mobius.quantization import Quantization
from mobius.stage_pass import StageResult
from mobius_ir_rules.passes import FoldWeights
from mobius_ir_rules.passes.quantize_weights import QuantizeWeights

__all__ = ["Quantize"]


class Quantize(ir.passes.InPlacePass):
    """Folds what packs and transposes weights, then quantizes what are matrices then."""

    def __init__(self, quantization: Quantization, accuracy_level: int) -> None:
        """Create the pass.

        Args:
            quantization: Decides about each weight.
            accuracy_level: What kernels may round the other operand to.
        """
        super().__init__()
        self._pass = QuantizeWeights(quantization.choose, accuracy_level=accuracy_level)

    def call(self, model: ir.Model) -> StageResult:
        """Run the passes; applications are the uses that read integers."""
        folded = FoldWeights()(model)
        result = self._pass.call(model)
        return StageResult(
            model, folded.modified or result.modified, result.applications, result.refusals
        )
