from __future__ import annotations

import functools

import onnx
import onnx_ir as ir
import pytest
from onnxscript import version_converter
from tests.foreign.checks import Reference


@functools.cache
def _reference(kind: str, opset: int, raised: int | None) -> Reference:
    # Torch and transformers are loaded by those who need them only.
    from tests.foreign.exports import export, inputs

    if raised is not None:
        model = ir.from_proto(onnx.load_from_string(_reference(kind, opset, None).data))
        version_converter.convert_version(model, raised, fallback=False)
        data = ir.to_proto(model).SerializeToString()
    else:
        data = export(kind, opset)
    names = [value.name for value in onnx.load_from_string(data).graph.input]
    # At opset 23 torch.onnx writes a RotaryEmbedding whose tables have one row for the whole
    # batch, which the operator takes for a batch of one only.
    rotary = b"RotaryEmbedding" in data and raised is None
    return Reference(data, inputs(names, batch=1 if rotary else 2))


@pytest.fixture(scope="session")
def exported():
    """`exported(kind, opset, raised=None)`: an export, made once, `raised` to a newer opset."""
    return lambda kind, opset, raised=None: _reference(kind, opset, raised)
