"""Configs of published models: each converts, and has as many parameters as transformers counts.

They lie beside the checkout (`../shared/data/configs`, or the folder that the environment variable
`MOBIUS_REAL_CONFIGS` names) and are not part of the repository.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import onnx_ir as ir
import pytest

import mobius
from mobius_hf.config import read_config
from mobius_hf.registry import find_architecture, supported_model_types
from mobius_hf.text_part import VERIFIED, text_config, text_tensors

_BESIDE = Path(__file__).parents[4] / "shared" / "data" / "configs"
CONFIGS = Path(os.environ.get("MOBIUS_REAL_CONFIGS", _BESIDE))


# File whose `model_type` transformers does not know -> parameters of the class that it names.
OLD_NAMES = {
    "moonshotai__Kimi-K2-Instruct.json": 1_026_408_209_408,
    "tencent__Hunyuan-A13B.json": 80_393_183_232,
}
# File -> why it cannot be counted.
NOT_COUNTED = {
    "maxtext__gemma2_27b.json": "transcribed without the size of the vocabulary",
    "maxtext__gemma2_9b.json": "transcribed without the size of the vocabulary",
    "mlc-preset__ministral3_3b_2512.json": "a multimodal file with the model_type of its text part",
}


def _rows() -> list[tuple[str, int]]:
    """Return file and number of parameters of each model whose family is supported."""
    index = CONFIGS / "INDEX.md"
    if not index.is_file():
        return []
    rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")]
        for line in index.read_text().splitlines()
        if line.startswith("|")
    ]
    return [
        (row[0], int(row[4]))
        for row in rows
        if row[1] in supported_model_types() and row[0] not in NOT_COUNTED
    ] + list(OLD_NAMES.items())


@pytest.mark.skipif(not _rows(), reason=f"no real configs in {CONFIGS}")
def test_real_configs_are_found() -> None:
    found = {read_config(CONFIGS / file)["model_type"] for file, _ in _rows()}
    assert {"bloom", "falcon", "gptj", "llama", "mpt", "opt", "qwen3"} <= found


@pytest.mark.parametrize(("file", "parameters"), _rows())
def test_number_of_parameters(file: str, parameters: int) -> None:
    path = CONFIGS / file
    raw = read_config(path)
    architecture = find_architecture(raw["model_type"], config=path, has_own_code=False)
    module = architecture.make_module(architecture.to_config(raw, path))
    shapes = [
        parameter.shape
        for name, parameter in module.named_parameters()
        if not name.endswith("e_score_correction_bias")  # a buffer of transformers' routers
    ]
    assert sum(math.prod(shape.numpy()) for shape in shapes if shape is not None) == parameters


# File -> why its text part cannot be counted.
NO_TEXT_PART = {
    "reduced__ipex-llava.json": "without a text_config, which transformers fills with 7B",
    "reduced__nxdi-pixtral-4layer.json": "has a norm_eps that transformers does not read",
}
# What transformers has as buffers.
BUFFERS = ("e_score_correction_bias", "layer_scalar")


def _composites() -> list[str]:
    return [
        path.name
        for path in sorted(CONFIGS.glob("*.json"))
        if read_config(path).get("model_type") in VERIFIED and path.name not in NO_TEXT_PART
    ]


@pytest.mark.skipif(not _composites(), reason=f"no composite configs in {CONFIGS}")
@pytest.mark.parametrize("file", _composites())
def test_number_of_parameters_of_a_text_part(file: str) -> None:
    """C073: as many as transformers counts in the whole model, without its other parts."""
    import torch
    import transformers

    path = CONFIGS / file
    text = text_config(read_config(path), path)
    architecture = find_architecture(text["model_type"], config=path, has_own_code=False)
    module = architecture.make_module(architecture.to_config(text, path))
    ours = sum(
        math.prod(parameter.shape.numpy())
        for name, parameter in module.named_parameters()
        if parameter.shape is not None and not name.endswith(BUFFERS)
    )
    raw = {key: value for key, value in read_config(path).items() if key != "quantization_config"}
    whole = transformers.CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    with torch.device("meta"):
        model = transformers.AutoModelForMultimodalLM.from_config(whole)
    parameters = {name: ir.tensor([0]) for name, _ in model.named_parameters()}
    kept = text_tensors(parameters)
    assert len(kept) < len(parameters)
    theirs = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if any(parameters[name] is each for each in kept.values())
    )
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of weights that a kernel may index wrongly
@pytest.mark.parametrize(("ep", "dtype"), [("cuda", "bf16"), ("onnx-standard", "f32")])
@pytest.mark.parametrize(("file", "parameters"), _rows())
def test_builds_without_weights(
    tmp_path: Path, file: str, parameters: int, ep: str, dtype: str
) -> None:
    """C113: the graph of a model of any size, every parameter of which it has."""
    shutil.copy(CONFIGS / file, tmp_path / "config.json")
    package = mobius.build(tmp_path, execution_provider=ep, dtype=dtype, load_weights=False)
    shapes = [
        values[0].shape
        for name, values in package.parameters().items()
        if not name.endswith("e_score_correction_bias")
    ]
    assert sum(math.prod(shape.numpy()) for shape in shapes if shape is not None) == parameters
