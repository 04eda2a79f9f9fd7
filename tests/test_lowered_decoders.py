"""Decoders that were lowered for their target compute what the portable graph computes.

All operators that they are lowered to have kernels on ONNX Runtime's CPU provider. Prefill of a
padded batch in one or two chunks, then decode steps; each token against the portable graph in
float32. Cases C022, C078, C127, C135.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from tests.parity.decoder import Decoder, padded_logits
from tests.test_kernel_tables import CONFIGS

from mobius import build_from_module
from mobius.models import CausalLMModel

DECODE_STEPS = 3
LENGTHS = (12, 9)
# f16 has 10 bits of fraction: of logits of about 4, half a step is 2e-3, and errors add up.
TOLERANCES = {"f32": 3e-5, "f16": 4e-2}
TARGETS = [
    ("webgpu", "f32", None),
    ("dml", "f32", None),
    ("dml", "f16", None),
    ("trt-rtx", "f32", None),
    ("onnx-standard", "f32", 17),
    ("onnx-standard", "f32", 21),
    ("onnx-standard", "f16", 17),
]
IDS = [f"{ep}-{dtype}" + (f"-opset{opset}" if opset else "") for ep, dtype, opset in TARGETS]


def weights(name: str) -> dict[str, ir.TensorProtocol]:
    """Return weights of the scale of trained ones: no norm of ones, no bias of zeros."""
    config = CONFIGS[name]
    random = np.random.default_rng(5)
    package = build_from_module(CausalLMModel(config), config, dtype="f32")
    made = {}
    for key, (value, *_) in package.parameters().items():
        assert value.shape is not None
        shape = [int(dim) for dim in value.shape]
        array = random.standard_normal(shape)
        if len(shape) > 1:
            array *= (2.0 if "q_proj" in key or "k_proj" in key else 1.0) / shape[-1] ** 0.5
        else:
            array = 0.3 * array + (0.0 if key.endswith("bias") else 1.0)
        made[key] = ir.tensor(array.astype(np.float32), name=key)
    return made


def decoder(name: str, ep: str, dtype: str, opset: int | None, folder: Path) -> Decoder:
    config = CONFIGS[name]
    package = build_from_module(
        CausalLMModel(config),
        config,
        execution_provider=ep,
        dtype=dtype,
        opset=opset,
        weights=weights(name),
    )
    package.save(folder)
    return Decoder(folder / "model.onnx")


def tokens() -> list:
    random = np.random.default_rng(7)
    return [random.integers(10, 64, size=length) for length in LENGTHS]


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory):
    """Logits of the portable graph in float32, made once for each model and side."""

    @functools.cache
    def get(name: str, side: str) -> list:
        folder = tmp_path_factory.mktemp(name)
        reference = decoder(name, "default", "f32", None, folder / "out")
        return padded_logits(reference, tokens(), DECODE_STEPS, side)

    return get


@pytest.mark.filterwarnings("ignore:[0-9]+ Loop nodes stay that ep='dml' lacks")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("ep", "dtype", "opset"), TARGETS, ids=IDS)
def test_equal_logits(portable, tmp_path, ep, dtype, opset, name):
    lowered = decoder(name, ep, dtype, opset, tmp_path / "out")
    graph = ir.load(tmp_path / "out" / "model.onnx").graph
    operators = {node.op_type for node in graph.all_nodes()}
    if "GroupQueryAttention" in operators:
        # Its kernel wants padding on the right, and a prompt in one piece.
        cases = [("right", ())]
    else:
        assert "Attention" not in operators
        cases = [("right", ()), ("left", ()), ("left", (4, 5))]
    for side, chunks in cases:
        got = padded_logits(lowered, tokens(), DECODE_STEPS, side, chunks)
        for ours, theirs in zip(got, portable(name, side), strict=True):
            assert 0.5 < np.abs(theirs).max() < 50
            assert np.abs(ours - theirs).max() < TOLERANCES[dtype]
