"""Every file of others' test models, on every EP: the same numbers, or a refusal with its reason.

The files are those of ONNX Runtime's own optimisers, near misses of patterns among them. They are
not part of this repository; `MOBIUS_FOREIGN_MODELS` says where they are.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import onnx
import pytest
from tests.foreign.checks import EPS, Outcome, Reference, check

FOLDER = Path(
    os.environ.get(
        "MOBIUS_FOREIGN_MODELS", Path(__file__).parents[3] / "shared" / "data" / "foreign"
    )
)
LARGE = ("fusion__matmul_integer_to_float_large_tensor", "fusion__qdq_fusion_")
"""Files that take long only because of their sizes."""

FILES = [
    pytest.param(
        path, id=path.stem, marks=[pytest.mark.slow] if path.stem.startswith(LARGE) else []
    )
    for path in sorted(FOLDER.glob("*.onnx"))
]

pytestmark = pytest.mark.skipif(not FILES, reason=f"there are no models in {FOLDER}")

INVALID = {"transformers__gpt2_past": "defines a value twice"}
"""Files that onnx_ir refuses to load."""

CANCELLATION = {"transformers__bert_3d_attention_opt": 5e-5}
"""Tolerances of norms of nearly constant rows, which show how a kernel rounds their mean."""

REFUSED = {
    "fusion__embed_layer_norm_format8": "Incompatible dimensions",  # sizes of -1
    "fusion__embed_layer_norm_format8_opset13": "Incompatible dimensions",
    "fusion__embed_layer_norm_format9": "Incompatible dimensions",
    "fusion__embed_layer_norm_format9_opset13": "Incompatible dimensions",
    "fusion__label_encoder": "ai.onnx.ml",
    "fusion__fuse-conv-bn-mul-add-unsqueeze.negative_axes": "Incompatible dimensions",
    "fusion__fuse-matmul-bn-directly-dont-fuse": "differ in rank",
}
"""Models that are refused as a whole where com.microsoft is allowed, and words of the reason."""


@functools.cache
def reference(path: Path) -> Reference | None:
    """Return the model's own numbers; `None` where it does not run on random inputs."""
    try:
        return Reference(path.read_bytes())
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        # Indices out of range, missing past inputs: the file has no numbers for random inputs.
        return None


def dtype_of(path: Path) -> str:
    """Return the float type that most weights and inputs have."""
    graph = onnx.load(path).graph
    types = [item.data_type for item in graph.initializer]
    types += [item.type.tensor_type.elem_type for item in graph.input]
    halves = types.count(onnx.TensorProto.FLOAT16)
    return "f16" if halves > types.count(onnx.TensorProto.FLOAT) else "f32"


def outcome(path: Path, ep: str, role: str, **options: bool) -> Outcome | None:
    """Check a file; `None` where its own numbers are not known."""
    if path.stem in INVALID:
        pytest.skip(f"the file {INVALID[path.stem]}")
    found = reference(path)
    if found is None:
        pytest.skip("the file does not run on random inputs")
    tolerance = CANCELLATION.get(path.stem)
    return check(found, ep, dtype_of(path), role, tolerance=tolerance, **options)


@pytest.mark.parametrize("path", FILES)
def test_every_ep(path: Path) -> None:
    errors = {}
    for ep in EPS:
        result = outcome(path, ep, "decoder" if "gpt2" in path.stem else "encoder")
        if result is not None and result.error:
            errors[ep] = result.error
    # onnx-standard has no operator of com.microsoft, unless a body can be put in its place.
    foreign = errors.pop("onnx-standard", None)
    if path.stem in REFUSED:
        assert all(REFUSED[path.stem] in error for error in errors.values())
        assert len(errors) == len(EPS) - 1
    else:
        assert errors == {}
        assert foreign is None or "com.microsoft" in foreign


@pytest.mark.parametrize("path", FILES[::6])
def test_optimising_again_changes_nothing(path: Path) -> None:
    for ep in ("cpu", "webgpu"):
        outcome(path, ep, "encoder", again=True)


PATTERNS = re.compile("norm|gelu|attention|gpt2|bert|whisper|phi|gemma|t5|megatron|matmul")


@functools.cache
def raised(path: Path) -> Reference:
    """Return the model at opset 23, where every operator exists that the rules make."""
    if path.stem in INVALID:
        pytest.skip(f"the file {INVALID[path.stem]}")
    try:
        model = onnx.version_converter.convert_version(onnx.load(path), 23)
    except (RuntimeError, onnx.shape_inference.InferenceError) as error:
        pytest.skip(f"onnx cannot raise the opset: {str(error)[:80]}")
    try:
        return Reference(model.SerializeToString())
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        pytest.skip("the raised file does not run on random inputs")


@pytest.mark.parametrize("path", [case for case in FILES if PATTERNS.search(case.id)])
def test_raised_to_opset_23(path: Path) -> None:
    for ep in ("cpu", "onnx-standard"):
        tolerance = CANCELLATION.get(path.stem)
        result = check(raised(path), ep, dtype_of(path), "encoder", tolerance=tolerance, again=True)
        if ep == "cpu":
            assert not result.error or path.stem == "fusion__reshape_fusion_distillbert"


@pytest.mark.parametrize(
    ("name", "rule", "count"),
    [
        ("fusion__layer_norm_shared_input", "LayerNormFusion", 2),
        ("fusion__layer_norm_sub_dup", "LayerNormFusion", 0),  # over all axes
        ("fusion__layer_norm_fusion_scale_bias", "LayerNormFusion", 0),  # mean in f16
        ("fusion__layer_norm_t5", "RMSNormFusion", 1),
        ("fusion__skip_layer_norm_format1", "LayerNormFusion", 1),
        ("fusion__gpt2_one_layer", "LayerNormFusion", 2),
    ],
)
def test_norms_of_others_fuse(name: str, rule: str, count: int) -> None:
    path = FOLDER / f"{name}.onnx"
    result = check(raised(path), "cpu", "f32", "encoder")
    assert result.applied[rule] == count
