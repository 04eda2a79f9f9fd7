"""Experts of 4 bits: the logits of transformers with weights that were rounded beforehand."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.parity.decoder import Decoder, padded_logits
from tests.parity.reference import logits_alone, make_model
from tests.parity.test_families import DECODE_STEPS, rows

import mobius
from mobius_ir_rules.block_quantization import BlockFormat, dequantize_rows, quantize_rows
from mobius_ir_rules.testing import op_counts

QMOE = "com.microsoft::QMoE"
# Activations are not rounded, so that numbers can be compared. Blocks fit in the tiny widths.
QUANTIZE = mobius.QuantizationConfig(block_size=16, accuracy_level=0)
TOLERANCE = 1e-5  # relative to the largest logit
# Family -> its parameters that are stored [..., in, out].
TURNED = {
    "gpt_oss": ("experts.gate_up_proj", "experts.down_proj"),
    "mixtral": (),
    "qwen3_moe": (),
}
STAY = ("embed_tokens.weight", "mlp.gate.weight", "mlp.router.weight", "bias", "sinks")


def rounded(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    form = BlockFormat(QUANTIZE.bits, QUANTIZE.block_size, QUANTIZE.symmetric)
    rows = np.ascontiguousarray(weight).reshape(-1, weight.shape[-1])
    return dequantize_rows(quantize_rows(rows, form), form, rows.shape[1]).reshape(weight.shape)


def round_weights(model: torch.nn.Module, turned: tuple[str, ...]) -> int:
    """Round what a build makes integers, and return how many experts' weights are among it."""
    experts = 0
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2 or name.endswith(STAY):
            continue
        values = parameter.detach().numpy()
        if name.endswith(turned):
            values = rounded(values.swapaxes(-1, -2)).swapaxes(-1, -2)
        else:
            values = rounded(values)
        parameter.data = torch.from_numpy(np.ascontiguousarray(values))
        experts += parameter.ndim > 2
    return experts


@pytest.mark.parametrize("model_type", TURNED)
@pytest.mark.parametrize("ep", ["cpu", "onnx-standard"])
def test_int4_is_transformers_with_rounded_weights(tmp_path, model_type, ep):
    model = make_model(model_type)
    model.save_pretrained(tmp_path)
    tokens = rows(model.config.vocab_size)
    floats = [logits_alone(model, row) for row in tokens]
    experts = round_weights(model, TURNED[model_type])
    package = mobius.build(tmp_path, execution_provider=ep, dtype="f32", quantize=QUANTIZE)
    package.save(tmp_path / "out")
    assert op_counts(package["model"])[QMOE] == (experts // 2 if ep == "cpu" else 0)
    (stage,) = [each for each in package.reports["model"].stages if each.name == "Quantize"]
    assert len(stage.refusals) == experts // 2  # the routers
    ours = padded_logits(Decoder(tmp_path / "out" / "model.onnx"), tokens, DECODE_STEPS, "right")
    for row, got, unrounded in zip(tokens, ours, floats, strict=True):
        expected = logits_alone(model, row)
        largest = np.abs(expected).max()
        assert np.abs(got - expected).max() < TOLERANCE * largest
        assert np.abs(unrounded - expected).max() > 1e-2 * largest  # rounding is seen
