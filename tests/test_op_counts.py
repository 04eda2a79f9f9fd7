"""Exact operators a layer on the EPs that cannot run here, for each of their dtypes."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from tests.parity.reference import make_config

import mobius
from mobius_ir_rules.testing import op_counts

LAYERS = 3
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
NAMES = {ir.DataType.FLOAT: "f32", ir.DataType.FLOAT16: "f16", ir.DataType.BFLOAT16: "bf16"}
# EP -> dtypes with GroupQueryAttention, and whether it takes packed projections and rotation.
FUSED = {
    "cuda": ("f16 bf16", True, True),
    "dml": ("f16", False, False),
    "mlx": ("f32 f16 bf16", False, False),
    "trt-rtx": ("f16 bf16", True, True),
    "webgpu": ("f32 f16", True, True),
}
# MLX does not read the lengths of rows: a bias tells it what may be seen, and rotation is a node of
# its own beside it.
TOLD_BY_BIAS = {"mlx"}
# Layers with a window, which DirectML cannot be told.
WINDOWED = {"qwen2": 2, "mistral": 3}
NOT_TOLD = {"dml"}
# Where rotation stays a node of its own: DirectML has the operator in another domain.
ROTATIONS = ("RotaryEmbedding", "com.microsoft::RotaryEmbedding")
CELLS = [
    (ep, NAMES[dtype])
    for ep in FUSED
    for dtype in sorted(mobius.get_ep(ep).dtypes, key=list(NAMES).index)
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Each family's config, without weights."""
    made = {}
    for family in FAMILIES:
        made[family] = tmp_path_factory.mktemp(family)
        make_config(family).save_pretrained(made[family])
    return made


def projections(model: ir.Model) -> int:
    """Count the products with a weight, whatever the operator."""
    return sum(
        1
        for node in model.graph
        if node.op_type in ("MatMul", "FusedMatMul")
        and any(_is_weight(value) for value in node.inputs)
    )


def _is_weight(value: ir.Value | None) -> bool:
    while value is not None and value.producer() is not None:
        if value.producer().op_type != "Transpose":  # of a tied table
            return False
        value = value.producer().inputs[0]
    return value is not None and value.is_initializer()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("ep", "dtype"), CELLS)
def test_operators_of_a_layer(folders, family, ep, dtype):
    package = mobius.build(folders[family], execution_provider=ep, dtype=dtype, load_weights=False)
    model = package["model"]
    found = op_counts(model)
    dtypes, packs, rotates = FUSED[ep]
    fused = dtype in dtypes.split()
    packed = fused and packs and family != "qwen3"  # norms stand between its projections and GQA
    windowed = WINDOWED.get(family, 0)
    layers = (LAYERS - windowed * (ep in NOT_TOLD)) if fused else 0
    assert found["com.microsoft::GroupQueryAttention"] == layers
    skips = 0 if ep == "trt-rtx" else 2 * LAYERS
    assert found["com.microsoft::SkipSimplifiedLayerNormalization"] == skips
    rotations = sum(found[name] for name in ROTATIONS)
    inside = layers if rotates else 0
    assert rotations == 2 * (LAYERS - inside)
    assert projections(model) == (5 if packed else 7) * LAYERS + 1
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert all((node.inputs[1] is None) == packed for node in attention)
    biased = [len(node.inputs) > 10 and node.inputs[10] is not None for node in attention]
    assert biased == [ep in TOLD_BY_BIAS] * layers
