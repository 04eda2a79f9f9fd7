"""onnx-standard packages give the right logits on tract, with Attention and without."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tract
from tests.runtimes.decoder import Run, output_names
from tests.runtimes.reference import FAMILIES, check
from tract.bindings import TractError

import mobius


def load(path: Path) -> Run:
    model = tract.onnx().load(path)
    # Outputs come back under the names of the nodes that make them, in the order of the graph.
    names = output_names(path)
    inputs = [model.input_name(index) for index in range(model.input_count())]
    runnable = model.into_model().into_runnable()

    def run(feed):
        outputs = runnable.run([feed[name] for name in inputs])
        return {name: output.to_numpy() for name, output in zip(names, outputs, strict=True)}

    return run


@pytest.mark.parametrize("opset", [None, 22, 17])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(model_for, reference_for, measured, family, dtype, opset):
    path = model_for(family, dtype, opset=opset)
    largest = check(path, load(path), reference_for(family, dtype), ["right", "left"])
    measured(dtype, largest)


def test_boolean_masks_are_not_taken(model_for):
    """tract 0.23.9 adds the mask of Attention to the scores, even if it is a boolean one.

    This is why onnx-standard gets floating-point masks.
    """
    boolean = dataclasses.replace(mobius.get_ep("onnx-standard"), lacks=())
    with pytest.raises(TractError, match="Mask must be floating point"):
        load(model_for("llama", "f32", ep=boolean))


def test_bfloat16_is_unknown(model_for):
    with pytest.raises(TractError, match="Unknown DatumType Bfloat16"):
        load(model_for("llama", "bf16", opset=22))
