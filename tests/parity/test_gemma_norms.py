"""C025: Gemma's norms and the factor of its embedding, in each dtype.

Weights of norms are stored less one and are about zero; the sum is float32, rounded once. The
factor is rounded to the dtype of the build before it is multiplied by.
"""

import numpy as np
import pytest
import torch
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import logits_alone, make_config, make_model

import mobius

BOUNDS = {"f32": 3e-5, "f16": 3e-2}
FACTORS = {"f32": np.float32(3072**0.5), "f16": 55.4375, "bf16": 55.5}


@pytest.mark.parametrize("model_type", ["gemma", "gemma3_text"])
def test_norms_that_are_stored_near_zero(tmp_path, model_type):
    model = make_model(model_type)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(tmp_path / "checkpoint")
    row = np.random.default_rng(3).integers(10, model.config.vocab_size, size=14)
    expected = logits_alone(model, row)
    for dtype, bound in BOUNDS.items():
        package = mobius.build(tmp_path / "checkpoint", execution_provider="default", dtype=dtype)
        package.save(tmp_path / dtype)
        (ours,) = padded_logits(Decoder(tmp_path / dtype / "model.onnx"), [row], 4, "right")
        assert np.abs(ours - expected).max() < bound * np.abs(expected).max()


@pytest.mark.parametrize("dtype", FACTORS)
def test_factor_of_the_embedding_is_rounded_and_norms_compute_in_float32(tmp_path, dtype):
    make_config("gemma", hidden_size=3072, num_hidden_layers=1).save_pretrained(tmp_path)
    package = mobius.build(
        tmp_path, execution_provider="onnx-standard", dtype=dtype, load_weights=False
    )
    graph = package["model"].graph
    embedded = next(node for node in graph if node.op_type == "Gather")
    (use,) = embedded.outputs[0].uses()
    factor = use.node.inputs[1 - use.idx].const_value
    assert use.node.op_type == "Mul"
    assert factor.dtype == package.dtype
    assert float(factor.numpy().astype(np.float32)) == FACTORS[dtype]
    norms = [node for node in graph if node.op_type == "RMSNormalization"]
    assert len(norms) == 3
    assert all(node.attributes.get_int("stash_type", 1) == 1 for node in norms)
