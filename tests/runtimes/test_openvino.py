"""onnx-standard packages give the right logits on OpenVINO's CPU plugin."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import openvino
import pytest
from tests.runtimes.decoder import Run, output_names
from tests.runtimes.reference import FAMILIES, check

TYPES = {
    np.dtype(np.int64): openvino.Type.i64,
    np.dtype(np.float32): openvino.Type.f32,
    np.dtype(np.float16): openvino.Type.f16,
    np.dtype(ml_dtypes.bfloat16): openvino.Type.bf16,
}
# Otherwise float32 becomes bfloat16 on processors that are fast at it.
CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 2}


def to_tensor(array):
    tensor = openvino.Tensor(TYPES[array.dtype], openvino.Shape(array.shape))
    if array.size:
        tensor.data.view(np.uint8).ravel()[:] = array.view(np.uint8).ravel()
    return tensor


def to_array(tensor):
    array = np.array(tensor.data)
    # numpy's own has no bfloat16: the bits are there, under another dtype.
    return array.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else array


def load(path: Path) -> Run:
    request = openvino.Core().compile_model(path, "CPU", CONFIG).create_infer_request()
    names = output_names(path)

    def run(feed):
        for name, array in feed.items():
            request.set_tensor(name, to_tensor(array))
        request.infer()
        return {name: to_array(request.get_tensor(name)) for name in names}

    return run


@pytest.mark.parametrize("opset", [24, 17])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(model_for, reference_for, measured, family, dtype, opset):
    path = model_for(family, dtype, opset=opset)
    largest = check(path, load(path), reference_for(family, dtype), ["right", "left"])
    measured(dtype, largest)
