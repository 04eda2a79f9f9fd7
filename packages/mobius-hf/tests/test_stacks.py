"""Experts that a checkpoint lists become one tensor a layer, read while it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file
from tests.parity.reference import make_model

import mobius
from mobius.errors import WeightsError
from mobius_hf.errors import CheckpointError
from mobius_hf.stacks import GATED_STACKS, PLAIN_STACKS, stack_experts

EXPERTS = 3
STEM = "model.layers.0.mlp.experts"


def _matrix(name: str, *shape: int) -> ir.Tensor:
    random = np.random.default_rng(abs(hash(name)) % 1000)
    return ir.Tensor(random.standard_normal(shape).astype(np.float32), name=name)


def _listed() -> dict[str, ir.Tensor]:
    tensors = {"model.norm.weight": _matrix("norm", 4)}
    for expert in (2, 0, 1):  # in no order
        for part, shape in (("gate", (6, 4)), ("up", (6, 4)), ("down", (4, 6))):
            name = f"{STEM}.{expert}.{part}_proj.weight"
            tensors[name] = _matrix(name, *shape)
    return tensors


def _stack(tensors: dict[str, ir.Tensor], **options) -> tuple[dict[str, ir.TensorProtocol], set]:
    sources = {name: name for name in tensors}
    stacked = stack_experts(options.get("stacks", GATED_STACKS), EXPERTS, sources, tensors)
    return stacked, set(sources)


def test_gate_comes_before_up_and_experts_in_their_order():
    tensors = _listed()
    stacked, left = _stack(tensors)
    assert left == {"model.norm.weight"}
    assert set(stacked) == {f"{STEM}.gate_up_proj", f"{STEM}.down_proj"}
    for expert in range(EXPERTS):
        parts = [
            tensors[f"{STEM}.{expert}.{part}_proj.weight"].numpy()
            for part in ("gate", "up", "down")
        ]
        gate_up = stacked[f"{STEM}.gate_up_proj"].numpy()[expert]
        np.testing.assert_array_equal(gate_up, np.concatenate(parts[:2]))
        np.testing.assert_array_equal(stacked[f"{STEM}.down_proj"].numpy()[expert], parts[2])


def test_nothing_is_read_before_the_parameter_is():
    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    lazy = {
        name: ir.LazyTensor(fail, tensor.dtype, tensor.shape, name=name)
        for name, tensor in _listed().items()
    }
    stacked, _ = _stack(lazy)
    tensor = stacked[f"{STEM}.gate_up_proj"]
    assert (tensor.dtype, tensor.shape.numpy()) == (ir.DataType.FLOAT, (EXPERTS, 12, 4))
    with pytest.raises(AssertionError, match="read"):
        tensor.numpy()


def test_parts_go_anywhere_in_memory_without_a_whole():
    """Rows of gate and up in turn, as kernels want them, and in another dtype."""
    tensors = _listed()
    tensor = _stack(tensors)[0][f"{STEM}.gate_up_proj"]
    out = np.zeros((EXPERTS, 6, 2, 4), np.float64)
    tensor.fill(out.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(out[:, :, 0], tensor.numpy()[:, :6])
    np.testing.assert_array_equal(out[:, :, 1], tensor.numpy()[:, 6:])
    parts = []
    tensor.visit(parts.append)
    assert len(parts) == 2 * EXPERTS
    np.testing.assert_array_equal(np.concatenate(parts), tensor.numpy().reshape(-1))


def test_experts_without_a_gate():
    tensors = {name: tensor for name, tensor in _listed().items() if "gate_proj" not in name}
    stacked, _ = _stack(tensors, stacks=PLAIN_STACKS)
    assert stacked[f"{STEM}.up_proj"].shape.numpy() == (EXPERTS, 6, 4)


def test_stacked_tensors_stay():
    """Case C018: what transformers 5 writes has the parameter's own name."""
    tensors = {f"{STEM}.gate_up_proj": _matrix("a", EXPERTS, 12, 4)}
    assert _stack(tensors) == ({}, set(tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{STEM}.1.up_proj.weight": None}, f"{STEM}.1.up_proj.weight is missing"),
        (
            {f"{STEM}.3.down_proj.weight": _matrix("d", 4, 6)},
            f"{STEM}.3.down_proj.weight is one too many",
        ),
        (
            {f"{STEM}.gate_up_proj": _matrix("a", EXPERTS, 12, 4)},
            f"{STEM}.gate_up_proj is there beside {STEM}.2.gate_proj.weight",
        ),
        (
            {f"{STEM}.1.up_proj.weight": _matrix(f"{STEM}.1.up_proj.weight", 6, 5)},
            "1.up_proj.weight' is FLOAT[6, 5], but",
        ),
    ],
)
def test_experts_that_do_not_fit(change, message):
    tensors = {**_listed(), **change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with pytest.raises(CheckpointError) as error:
        _stack(tensors)
    assert message in str(error.value)


def test_all_problems_are_counted():
    tensors = {name: tensor for name, tensor in _listed().items() if f"{STEM}.0" not in name}
    with pytest.raises(CheckpointError, match=r"8 experts a layer .* is missing") as error:
        stack_experts(GATED_STACKS, 8, {name: name for name in tensors}, tensors)
    assert "and 13 more" in str(error.value)


@pytest.mark.parametrize("model_type", ["mixtral", "qwen2_moe", "granitemoe", "ernie4_5_moe"])
def test_listed_and_stacked_checkpoints_give_the_same_weights(tmp_path: Path, model_type: str):
    """Case C018: zero unfilled initializers, zero unused tensors, bit for bit the same."""
    model = make_model(model_type)
    for name, original in (("listed", True), ("stacked", False)):
        model.save_pretrained(tmp_path / name, save_original_format=original)
    names = [
        set(load_file(tmp_path / name / "model.safetensors")) for name in ("listed", "stacked")
    ]
    assert names[0] != names[1]
    packages = [
        mobius.build(tmp_path / name, execution_provider="cpu", dtype="f32")["model"]
        for name in ("listed", "stacked")
    ]
    weights = [package.graph.initializers for package in packages]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        other = weights[1][name].const_value
        np.testing.assert_array_equal(value.const_value.numpy(), other.numpy(), err_msg=name)


def test_a_missing_expert_is_named_before_anything_is_written(tmp_path: Path):
    make_model("mixtral").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.block_sparse_moe.experts.3.w2.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"layers\.1\.mlp\.experts\.3\.down_proj\.weight is m"
    ):
        mobius.build(tmp_path, execution_provider="cpu", dtype="f32")


def test_layers_past_the_last_one_are_left_out(tmp_path: Path):
    """GLM 4.5 has a layer that predicts one token further on; 46 and 92 are not always it."""
    make_model("glm4_moe").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    further = {
        name.replace("layers.2.", "layers.3."): tensor
        for name, tensor in tensors.items()
        if "layers.2." in name
    }
    further["model.layers.3.shared_head.norm.weight"] = np.ones(64, np.float32)
    save_file({**tensors, **further}, path, metadata={"format": "pt"})
    model = mobius.build(tmp_path, execution_provider="cpu", dtype="f32")["model"]
    assert not [name for name in model.graph.initializers if "layers.3." in name]


def test_a_layer_past_the_last_one_is_an_error_elsewhere(tmp_path: Path):
    make_model("mixtral").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.3.input_layernorm.weight"] = np.ones(64, np.float32)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"layers\.3\.input_layernorm"):
        mobius.build(tmp_path, execution_provider="cpu", dtype="f32")
