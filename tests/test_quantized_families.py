"""Every target makes integers of the same weights, whatever is around their products.

A scale after a product (gemma3n, granite, minimax), a transposed operand (mamba), weights stored
`[in, out]` and a tied table (gpt2), latent attention and experts (deepseek_v2): where one target
fuses what another leaves alone, both read the same integers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import make_model

import mobius
from mobius import ModelPackage, QuantizationConfig
from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.lazy import DerivedTensor

EPS = ("cpu", "default", "onnx-standard", "webgpu")
FAMILIES = ("deepseek_v2", "gemma3n_text", "gpt2", "granite", "mamba", "minimax")
READERS = ("DequantizeLinear", "GatherBlockQuantized", "MatMulNBits", "MoE", "QMoE")
QUANTIZE = QuantizationConfig(embeddings=True, symmetric=False, block_size=16, accuracy_level=0)
FORM = BlockFormat(QUANTIZE.bits, QUANTIZE.block_size, QUANTIZE.symmetric)
ROWS = [np.random.default_rng(3).integers(10, 200, size=length) for length in (14, 10)]


def build(checkpoint: Path, ep: str, quantize: QuantizationConfig | None) -> ModelPackage:
    return mobius.build(checkpoint, execution_provider=ep, dtype="f32", quantize=quantize)


def quantized(package: ModelPackage) -> set[str]:
    """Return the parameters that nodes read as integers."""
    tensors = [
        value.const_value
        for node in package["model"].graph.all_nodes()
        if node.op_type in READERS
        for value in node.inputs
        if value is not None
    ]
    made = [tensor for tensor in tensors if isinstance(tensor, DerivedTensor)]
    return {str(leaf.name) for tensor in made for leaf in tensor.leaves}


def rounded(name: str, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return the floats that the integers of a weight, or of each of a stack, stand for."""
    array = np.asarray(tensor.numpy(), np.float32)
    rows = array.reshape(-1, array.shape[-1])
    back = dequantize_rows(quantize_rows(rows, FORM), FORM, rows.shape[1])
    return ir.tensor(back.reshape(array.shape), name=name)


def logits(package: ModelPackage, folder: Path) -> npt.NDArray[np.float32]:
    package.save(folder)
    return np.concatenate(padded_logits(Decoder(folder / "model.onnx"), ROWS, 3, "right"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_integers_on_every_target(family: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    make_model(family).save_pretrained(checkpoint)
    packages = {ep: build(checkpoint, ep, QUANTIZE) for ep in EPS}
    names = set.union(*map(quantized, packages.values()))
    reference = build(checkpoint, "cpu", None)
    tensors = {name: values[0].const_value for name, values in reference.parameters().items()}
    assert names <= tensors.keys()
    reference.apply_weights(
        {name: rounded(name, each) if name in names else each for name, each in tensors.items()}
    )
    expected = logits(reference, tmp_path / "reference")
    largest = np.abs(expected).max()
    for ep, package in packages.items():
        difference = np.abs(logits(package, tmp_path / ep) - expected).max()
        assert difference < 5e-5 * largest, ep
