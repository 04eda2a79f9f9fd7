"""onnx-standard packages give the right logits on ONNX's own reference evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from tests.runtimes.decoder import Run, output_names
from tests.runtimes.reference import FAMILIES, check


def load(path: Path) -> Run:
    evaluator = ReferenceEvaluator(str(path))
    names = output_names(path)

    def run(feed):
        # The softmax of float16 subtracts from the lowest number, and means minus infinity.
        with np.errstate(over="ignore"):
            return dict(zip(names, evaluator.run(names, dict(feed)), strict=True))

    return run


@pytest.mark.parametrize("opset", [24, 17])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(model_for, reference_for, measured, family, dtype, opset):
    path = model_for(family, dtype, opset=opset)
    largest = check(path, load(path), reference_for(family, dtype), ["right", "left"])
    measured(dtype, largest)
