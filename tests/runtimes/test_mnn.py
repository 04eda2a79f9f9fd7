"""onnx-standard packages in opset 17 give the right logits on MNN.

Needs the `MNN` package, which is not in the development environment: `nox -s "runtimes(mnn)"`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from tests.runtimes.decoder import Run, input_names, output_names
from tests.runtimes.reference import FAMILIES, check

pytestmark = pytest.mark.slow


def load(path: Path, converted: Path) -> Run:
    expr = pytest.importorskip("MNN.expr", reason="MNN is not installed")
    # Not `MNN.tools`: importing that installs another package and reports to a server.
    converter = importlib.import_module("_tools")
    files = ["--modelFile", str(path), "--MNNModel", str(converted)]
    converter.mnnconvert(["mnnconvert", "-f", "ONNX", *files, "--bizCode", "mobius"])
    inputs, names = input_names(path), output_names(path)
    net = importlib.import_module("MNN.nn").load_module_from_file(str(converted), inputs, names)

    def run(feed):
        outputs = net.forward([to_variable(expr, array) for array in feed.values()])
        return {name: np.array(each.read()) for name, each in zip(names, outputs, strict=True)}

    return run


def to_variable(expr, array):
    """MNN's integers have 32 bits."""
    if array.dtype == np.int64:
        array = array.astype(np.int32)
    dtype = {np.dtype(np.int32): expr.int, np.dtype(np.float32): expr.float}[array.dtype]
    variable = expr.placeholder(list(array.shape), expr.NCHW, dtype)
    if array.size:
        variable.write(array.ravel().tolist())
    return variable


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(model_for, reference_for, tmp_path, measured, family):
    path = model_for(family, "f32", opset=17)
    run = load(path, tmp_path / "model.mnn")
    largest = check(path, run, reference_for(family, "f32"), ["right", "left"])
    measured("f32", largest)
