"""The example compiler fuses with mobius_ir_rules alone, and its results are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

ROOT = Path(__file__).parents[1]
MODEL = """
    <ir_version: 10, opset_import: ["" : 24]>
    g (float[B, S, 32] x, float[B, S, 32] residual, float[32] gamma, float[32] bias)
      => (float[B, S, 32] y, float[B, S, 32] sum) {
        sum = Add (x, residual)
        normed = RMSNormalization <axis = -1, epsilon = 1e-6> (sum, gamma)
        shifted = Add (normed, bias)
        y = Gelu (shifted)
    }"""


def test_example(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "in.onnx")
    script = """
import runpy, sys
for name in ("mobius", "mobius_eps", "mobius_components", "mobius_hf"):
    sys.modules[name] = None  # importing it is an error now
sys.argv[1:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    example = ROOT / "examples" / "embedding" / "tiny_compiler.py"
    code = script.replace("sys.argv[0]", repr(str(example)))
    paths = [str(tmp_path / "in.onnx"), str(tmp_path / "out.onnx")]
    result = subprocess.run(
        [sys.executable, "-c", code, "-", *paths], check=True, capture_output=True, text=True
    )
    assert "4 -> 2 nodes" in result.stdout
    compiled = onnx.load(tmp_path / "out.onnx")
    found = sorted(node.op_type for node in compiled.graph.node)
    assert found == ["BiasGelu", "SkipSimplifiedLayerNormalization"]
    random = np.random.default_rng(0)
    feed = {
        "x": random.standard_normal((2, 3, 32)).astype(np.float32),
        "residual": random.standard_normal((2, 3, 32)).astype(np.float32),
        "gamma": random.standard_normal(32).astype(np.float32),
        "bias": random.standard_normal(32).astype(np.float32),
    }
    expected, ours = (
        onnxruntime.InferenceSession(tmp_path / name).run(None, feed)
        for name in ("in.onnx", "out.onnx")
    )
    for left, right in zip(expected, ours, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-6)
