"""`QuantizationConfig`, the stage that obeys it, and the options of the command line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import mobius
from mobius import ModelPackage, QuantizationConfig, optimize_model
from mobius.errors import NonFiniteWeightsError
from mobius.external_data import plan_layout, write_data
from mobius.quantization import QuantizationError, parse_quantization
from mobius_ir_rules.block_quantization import BlockFormat, quantize_rows
from mobius_ir_rules.passes.quantize_weights import QuantizeWeights, UseKind, WeightUse

Run = Callable[..., Any]
MakeModel = Callable[..., ir.Model]


def use(kind: UseKind = UseKind.PRODUCT, *names: str) -> WeightUse:
    return WeightUse(names or ("model.layers.0.mlp.up_proj.weight",), kind, 8, 32)


@pytest.mark.parametrize(
    ("quantize", "wanted"),
    [
        ("int4", QuantizationConfig()),
        (" INT8 ", QuantizationConfig(bits=8)),
        (QuantizationConfig(block_size=128), QuantizationConfig(block_size=128)),
        (None, None),
    ],
)
def test_ways_to_say_it(quantize: Any, wanted: QuantizationConfig | None) -> None:
    assert parse_quantization(quantize) == wanted


def test_defaults_are_those_of_every_runtime() -> None:
    config = QuantizationConfig()
    assert config.form == BlockFormat(4, 32, True)
    assert (config.lm_head, config.embeddings, config.accuracy_level) == (True, False, None)
    assert hash(config) == hash(QuantizationConfig())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 3}, "bits is 3; needed: one of 4, 8."),
        ({"bits": True}, "bits is True; needed: one of 4, 8."),
        ({"block_size": 33}, "block_size is 33; needed: one of 16, 32, 64, 128, 256."),
        ({"symmetric": 1}, "symmetric is 1; needed: True or False."),
        ({"accuracy_level": 5}, "accuracy_level is 5; needed: an int from 0 (most accurate) to 4"),
        ({"accuracy_level": True}, "accuracy_level is True; needed: an int from 0"),
        ({"exclude": "lm_head"}, "exclude is 'lm_head'; needed: a tuple of regular expressions."),
        ({"exclude": (3,)}, "exclude holds 3; needed: a regular expression."),
        ({"exclude": ("(",)}, "exclude holds '(', which is no regular expression: missing )"),
    ],
)
def test_wrong_fields_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantizationError) as caught:
        QuantizationConfig(**arguments)
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)


def test_unknown_names_come_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(QuantizationError) as caught:
        # Before anything is looked for.
        mobius.build(tmp_path / "nothing", quantize="int44")
    assert str(caught.value) == (
        "quantize is 'int44'; needed: one of 'int4', 'int8', 'float', or a "
        "mobius.QuantizationConfig. Did you mean 'int4'?"
    )
    with pytest.raises(QuantizationError, match="quantize is 4; needed"):
        parse_quantization(4)  # type: ignore[arg-type]


class TestChoose:
    """Which weights, by what they are used for."""

    def test_products_and_heads(self) -> None:
        assert QuantizationConfig().choose(use()) == BlockFormat(4, 32, True)
        assert QuantizationConfig().choose(use(UseKind.HEAD)) == BlockFormat(4, 32, True)
        reason = QuantizationConfig(lm_head=False).choose(use(UseKind.HEAD))
        assert reason == "The weight is the output head, which was left out (lm_head=False)."

    def test_tables_on_request(self) -> None:
        assert QuantizationConfig().choose(use(UseKind.TABLE)) is None
        config = QuantizationConfig(embeddings=True, bits=8)
        assert config.choose(use(UseKind.TABLE)) == BlockFormat(8, 32, True)

    def test_routers_never(self) -> None:
        assert QuantizationConfig().choose(use(UseKind.ROUTER)) == (
            "The weight chooses experts; a router stays as it is, because a rounded one sends "
            "tokens to other experts."
        )

    def test_patterns(self) -> None:
        config = QuantizationConfig(exclude=(r"layers\.0\.", "never"))
        reason = r"The name of the weight has a match of 'layers\.0\.', which was left out."
        assert config.choose(use()) == reason
        # One of several that are packed.
        assert config.choose(use(UseKind.PRODUCT, "a.weight", "layers.0.b.weight")) == reason
        assert config.choose(use(UseKind.PRODUCT, "model.layers.10.weight")) == config.form

    def test_a_pattern_of_nothing_is_a_mistake(self) -> None:
        names = ["lm_head.weight", "model.norm.weight"]
        QuantizationConfig(exclude=("norm",)).check_exclude(names)
        with pytest.raises(QuantizationError) as caught:
            QuantizationConfig(exclude=("norm", "lmhead")).check_exclude(names)
        assert str(caught.value) == (
            "The pattern 'lmhead' of exclude is found in none of the 2 parameters. Some of them: "
            "lm_head.weight, model.norm.weight"
        )


def test_a_model_of_others_is_quantized_too(model_of: MakeModel) -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((48, 64), np.float32)
    model = model_of(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[batch, 48] x, float[48, 64] w) => (float[batch, 64] y) { y = MatMul(x, w) }""",
        {"w": weight},
    )
    report = optimize_model(model, ep="cpu", quantize="int8")
    (stage,) = [stage for stage in report.stages if stage.name == "Quantize"]
    assert stage.applications == 1
    packed = model.graph.initializers["w.qweight"].const_value
    assert packed is not None
    rows = np.ascontiguousarray(weight.T)
    np.testing.assert_array_equal(
        packed.numpy(), quantize_rows(rows, BlockFormat(8, 32, True)).packed
    )


def test_without_being_asked_no_stage_runs(model_of: MakeModel) -> None:
    model = model_of(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[batch, 48] x, float[48, 64] w) => (float[batch, 64] y) { y = MatMul(x, w) }"""
    )
    assert "Quantize" not in [stage.name for stage in optimize_model(model, ep="cpu").stages]


@pytest.fixture
def quantized(model_of: MakeModel) -> ModelPackage:
    """Return a package with one quantized weight that is not loaded."""
    model = model_of(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float16[n, 48] x, float16[48, 64] w) => (float16[n, 64] y) { y = MatMul(x, w) }"""
    )
    package = ModelPackage({"model": model}, roles={"model": "decoder"})
    optimize_model(model, ep="cpu", dtype="f16", quantize=QuantizationConfig(symmetric=False))
    return package


def weight_with(value: float, dtype: Any) -> dict[str, ir.TensorProtocol]:
    array = np.ones((48, 64), np.float32)
    array[3, 5] = value
    return {"w": ir.tensor(array.astype(dtype))}


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        (np.nan, np.float16, "1 NaN or infinite, 0 beyond"),
        (1e6, np.float32, "0 NaN or infinite, 1"),
    ],
)
def test_bad_numbers_are_found_in_the_weight_that_has_them(
    quantized: ModelPackage, tmp_path: Path, value: float, dtype: Any, found: str
) -> None:
    quantized.apply_weights(weight_with(value, dtype))
    with pytest.raises(NonFiniteWeightsError, match=f"w: {found}"):
        quantized.save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_of_a_weight_are_written_by_one_computation(
    quantized: ModelPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized.apply_weights(weight_with(2.0, np.float16))
    layout = plan_layout(quantized["model"], "data", frozenset())
    calls: list[int] = []

    def counted(rows: Any, form: BlockFormat) -> Any:
        calls.append(len(rows))
        return quantize_rows(rows, form)

    monkeypatch.setattr("mobius_ir_rules.quantized_weights.quantize_rows", counted)
    write_data(layout, tmp_path / "data")
    assert sum(calls) == 64
    data = (tmp_path / "data").read_bytes()
    for entry in layout.entries:
        assert entry.tensor is not None
        assert data[entry.offset : entry.offset + entry.length] == entry.tensor.tobytes()


def test_the_manifest_says_how(tmp_path: Path) -> None:
    config = mobius.ArchitectureConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    quantize = QuantizationConfig(embeddings=True, exclude=("q_proj",))
    package = mobius.build_from_module(
        mobius.models.CausalLMModel(config), config, execution_provider="cpu", quantize=quantize
    )
    package.save(tmp_path / "out")
    document = json.loads((tmp_path / "out" / "mobius.json").read_text())
    assert document["quantization"] == {
        **dataclasses.asdict(quantize),
        "exclude": ["q_proj"],
    }
    assert ModelPackage.load(tmp_path / "out").quantization == document["quantization"]
    with pytest.raises(QuantizationError, match="The pattern 'nobody' of exclude is found in none"):
        mobius.build_from_module(
            mobius.models.CausalLMModel(config),
            config,
            quantize=dataclasses.replace(quantize, exclude=("nobody",)),
        )


class TestCommandLine:
    """`mobius build --quantize` and its options."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Return what `mobius.build` is called with; it builds nothing."""
        calls: dict[str, Any] = {}

        def fake(model: str, **options: Any) -> ModelPackage:
            calls.update(options, model=model)
            raise QuantizationError("enough")

        monkeypatch.setattr(mobius, "build", fake, raising=False)
        return calls

    @pytest.mark.parametrize(
        ("options", "wanted"),
        [
            ([], None),
            (["--quantize", "int4"], QuantizationConfig()),
            (
                ["--quantize", "int8", "--block-size", "64", "--asymmetric", "--float-head"],
                QuantizationConfig(bits=8, block_size=64, symmetric=False, lm_head=False),
            ),
            (
                [
                    *("--quantize", "int4", "--quantize-embeddings", "--accuracy-level", "0"),
                    *("--quantize-exclude", "a.b", "--quantize-exclude", "c"),
                ],
                QuantizationConfig(embeddings=True, accuracy_level=0, exclude=("a.b", "c")),
            ),
        ],
    )
    def test_options(
        self, run: Run, asked: dict[str, Any], tmp_path: Path, options: list[str], wanted: Any
    ) -> None:
        result = run("build", "org/name", tmp_path / "out", *options)
        assert result.exit_code == 1, result.output  # what the fake raises
        assert asked["quantize"] == wanted

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--block-size", "64"], "block_size: needs --quantize int4"),
            (["--quantize", "int4", "--block-size", "24"], "block_size is 24; needed: one of"),
            (["--quantize", "in4"], "Did you mean 'int4'?"),
            (["--quantize", "int4", "--quantize-exclude", "("], "no regular expression"),
        ],
    )
    def test_wrong_usage(
        self, run: Run, asked: dict[str, Any], tmp_path: Path, options: list[str], message: str
    ) -> None:
        result = run("build", "org/name", tmp_path / "out", *options)
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.replace("│", " ").split())
        assert asked == {}


def test_the_pass_takes_any_way_to_choose(model_of: MakeModel) -> None:
    model = model_of(
        """<ir_version: 10, opset_import: ["" : 24]>
        g (float[batch, 48] x, float[48, 64] w) => (float[batch, 64] y) { y = MatMul(x, w) }"""
    )
    result = QuantizeWeights(lambda use: f"{use.rows} by {use.columns}: no.").call(model)
    assert [refusal.reason for refusal in result.refusals] == ["64 by 48: no."]
