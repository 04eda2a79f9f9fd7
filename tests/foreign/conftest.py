from __future__ import annotations

import functools

import onnx
import pytest
from tests.foreign.checks import Reference


@functools.cache
def _reference(kind: str, opset: int) -> Reference:
    # Torch and transformers are loaded by those who need them only.
    from tests.foreign.exports import export, inputs

    data = export(kind, opset)
    names = [value.name for value in onnx.load_from_string(data).graph.input]
    # At opset 23 torch.onnx writes a RotaryEmbedding whose tables have one row for the whole
    # batch, which the operator takes for a batch of one only.
    return Reference(data, inputs(names, batch=1 if b"RotaryEmbedding" in data else 2))


@pytest.fixture(scope="session")
def exported():
    """`exported(kind, opset)`: an export, made once."""
    return _reference
