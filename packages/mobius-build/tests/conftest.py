"""Small models and packages that the tests of this distribution share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import mobius
from mobius.cli import app
from mobius.package import ModelPackage
from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel

TINY = """<ir_version: 10, opset_import: ["" : 24]>
tiny (float[batch, 16] x, float[16, 8] layer_weight, float[8] layer_bias, float[8] scale,
      float[8, 32] head_weight) => (float[batch, 32] y) {
  projected = MatMul(x, layer_weight)
  shifted = Add(projected, layer_bias)
  scaled = Mul(shifted, scale)
  y = MatMul(scaled, head_weight)
}"""
"""`layer_weight`, `layer_bias` and `head_weight` are parameters, `scale` is a constant."""

Arrays = Mapping[str, npt.NDArray[np.generic]]


def model_of(text: str, constants: Arrays | None = None) -> ir.Model:
    """Return the model of an ONNX text in which every input but `x` is an initializer.

    Those in `constants` have data; the others are parameters.
    """
    model = ir.from_onnx_text(text)
    for value in [value for value in model.graph.inputs if value.name != "x"]:
        model.graph.inputs.remove(value)
        model.graph.initializers[str(value.name)] = value
        if constants is not None and value.name in constants:
            value.const_value = ir.tensor(constants[value.name], name=value.name)
    return model


def tiny_model(dtype: str = "float") -> ir.Model:
    """Return the model of `TINY`, in another dtype of ONNX text if asked."""
    text = TINY.replace("float[", f"{dtype}[")
    as_numpy = ir.DataType["FLOAT" if dtype == "float" else dtype.upper()].numpy()
    return model_of(text, {"scale": np.full(8, 0.5, as_numpy)})


def tensors_for(package: ModelPackage, seed: int = 0) -> dict[str, ir.TensorProtocol]:
    """Return random float32 tensors for every parameter of a package."""
    generator = np.random.default_rng(seed)
    return {
        name: ir.tensor(
            generator.standard_normal([int(dim) for dim in values[0].shape], dtype=np.float32)
        )
        for name, values in package.parameters().items()
        if values[0].shape is not None
    }


@pytest.fixture(name="model_of")
def _model_of() -> Callable[..., ir.Model]:
    return model_of


@pytest.fixture(name="tiny_model")
def _tiny_model() -> Callable[..., ir.Model]:
    return tiny_model


@pytest.fixture(name="tensors_for")
def _tensors_for() -> Callable[..., dict[str, ir.TensorProtocol]]:
    return tensors_for


@pytest.fixture
def make_package() -> Callable[..., ModelPackage]:
    """Return a maker of packages with one tiny decoder, with weights unless told otherwise."""

    def make(*, dtype: str = "float", weights: bool = True, seed: int = 0) -> ModelPackage:
        package = ModelPackage({"model": tiny_model(dtype)}, roles={"model": "decoder"})
        if weights:
            package.apply_weights(tensors_for(package, seed))
        return package

    return make


@pytest.fixture
def run() -> Callable[..., Any]:
    """Return a function that runs the command line in this process."""

    def run(*arguments: object) -> Any:
        environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
        return CliRunner().invoke(app, [str(item) for item in arguments], env=environment)

    return run


DECODER = ArchitectureConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=10000.0,
    max_position_embeddings=64,
)


@pytest.fixture
def decoder() -> Callable[..., ModelPackage]:
    """Return a maker of packages with a decoder of two layers and random weights."""

    def make(*, seed: int = 0, weights: bool = True, **options: Any) -> ModelPackage:
        package = mobius.build_from_module(CausalLMModel(DECODER), DECODER, **options)
        if weights:
            tensors = {
                # As large as those of a trained model; norms around 1.
                name: ir.tensor(
                    tensor.numpy() * np.float32(0.1) + np.float32("norm" in name), name=name
                )
                for name, tensor in tensors_for(package, seed).items()
            }
            package.apply_weights(tensors)
        return package

    return make
