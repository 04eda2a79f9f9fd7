"""webgpu packages give the right logits on ONNX Runtime's WebGPU EP, and really run there.

Needs onnxruntime-ep-webgpu and a Vulkan driver, in software or not: `nox -s "runtimes(webgpu)"`.
SwiftShader is enough for float32; it has no float16.
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tests.runtimes.decoder import Run, RuntimeDecoder
from tests.runtimes.reference import DECODE_STEPS, F32_TOLERANCE, FAMILIES, check

pytestmark = pytest.mark.slow

CPU, WEBGPU = "CPUExecutionProvider", "WebGpuExecutionProvider"
# Integers stay on the CPU: the lengths of rows, and what a mask is made of.
LENGTHS = {"Cast", "ReduceSum", "Shape", "Squeeze", "Sub"}
LAST = {"Mul", "Neg", "Range", "ReduceMax", "Slice", "Unsqueeze"}
MASK = {
    *{"Cast", "CumSum", "Equal", "GreaterOrEqual", "Less", "Neg", "Range", "Shape", "Slice"},
    *{"Squeeze", "Sub", "Unsqueeze"},
}


@functools.cache
def devices():
    plugin = pytest.importorskip("onnxruntime_ep_webgpu", reason="no onnxruntime-ep-webgpu")
    ort.register_execution_provider_library("mobius-webgpu", plugin.get_library_path())
    found = [device for device in ort.get_ep_devices() if device.ep_name == WEBGPU]
    if not found:
        pytest.skip("the WebGPU EP found no device; ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1?")
    return found[:1]


def load(path: Path) -> tuple[Run, dict[str, Counter[str]]]:
    """Return what runs the model, and the operators on each EP."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_provider_for_devices(devices(), {})
    session = ort.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    placed: dict[str, Counter[str]] = {CPU: Counter(), WEBGPU: Counter()}
    # A session that could not use the EP would run on the CPU, silently, with right numbers.
    for part in session.get_provider_graph_assignment_info():
        placed[part.ep_name].update(node.op_type for node in part.get_nodes())

    def run(feed):
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    return run, placed


@pytest.mark.parametrize("family", FAMILIES)
def test_logits(model_for, reference_for, measured, family):
    path = model_for(family, "f32", ep="webgpu")
    run, placed = load(path)
    assert placed[WEBGPU]["GroupQueryAttention"] == 3
    assert placed[WEBGPU]["SkipSimplifiedLayerNormalization"] == 6
    assert placed[WEBGPU]["MatMul"] > 0
    assert placed[CPU].keys() <= LENGTHS
    # GroupQueryAttention takes rows that are padded on the right.
    largest = check(path, run, reference_for(family, "f32"), ["right"])
    measured("f32", largest)


def test_logits_of_the_last_token(model_for, reference_for):
    """As the command builds it: only what finds the token stays on the CPU."""
    path = model_for("qwen2", "f32", ep="webgpu", last_token_logits=True)
    run, placed = load(path)
    assert placed[CPU].keys() <= LENGTHS | {
        "Mul",
        "Neg",
        "Range",
        "ReduceMax",
        "Slice",
        "Unsqueeze",
    }
    reference = reference_for("qwen2", "f32")
    decoder = RuntimeDecoder(path, run)
    decoder.start(len(reference.tokens))
    prompts = [row[:-DECODE_STEPS] for row in reference.tokens]
    longest = max(map(len, prompts))
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in prompts])
    tokens = np.array([[*row, *[0] * (longest - len(row))] for row in prompts])
    logits = decoder.step(tokens, mask)
    assert logits.shape[:2] == (len(prompts), 1)
    for found, row, expected in zip(logits[:, 0], prompts, reference.logits, strict=True):
        wanted = expected[len(row) - 1]
        assert np.abs(found - wanted).max() <= F32_TOLERANCE * np.abs(wanted).max()


def test_attention_of_primitives(model_for, reference_for, measured):
    """Gemma 2 caps its scores, which GroupQueryAttention ignores there; Attention has no kernel."""
    path = model_for("gemma2", "f32", ep="webgpu")
    run, placed = load(path)
    everywhere = placed[CPU] + placed[WEBGPU]
    assert everywhere["GroupQueryAttention"] == everywhere["Attention"] == 0
    assert placed[WEBGPU]["Softmax"] == 3
    assert placed[CPU].keys() <= MASK
    largest = check(path, run, reference_for("gemma2", "f32"), ["right", "left"])
    measured("f32", largest)
