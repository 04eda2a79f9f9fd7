"""`genai_config.json`: what it says of a decoder, and when there is none."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

import mobius
from mobius.generation import GenerationSettings
from mobius.package import ModelPackage
from mobius_components import ArchitectureConfig
from mobius_components.models import CausalLMModel
from mobius_eps import EpCapabilities, RuntimeNames, get_ep

MakeDecoder = Callable[..., ModelPackage]
SETTINGS = GenerationSettings(bos=1, eos=(2, 5), pad=0, search={"do_sample": True, "top_p": 0.9})
F16 = ir.DataType.FLOAT16
CAPABLE = EpCapabilities(
    name="capable",
    gqa_dtypes={F16},
    qkv_pack_dtypes={F16},
    provider_options={"memory": "low"},
    enable_graph_capture=True,
    runtime_names=RuntimeNames(genai="mine", genai_graph_capture="capture"),
)


def save(
    package: ModelPackage, folder: Path, settings: GenerationSettings | None = SETTINGS
) -> dict[str, Any]:
    """Save a package with `settings`; return the manifest and `genai_config.json`, if any."""
    package.with_source(name="org/name", revision="0", generation=settings).save(folder)
    written: dict[str, Any] = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (folder / "mobius.json", folder / "genai_config.json")
        if path.is_file()
    }
    return written


def refusal(written: dict[str, Any]) -> str:
    assert "genai_config" not in written
    assert "genai_config.json" not in written["mobius"]["files"]
    reason: str = written["mobius"]["generation"]["genai_refusal"]
    return reason


def test_all_of_it(decoder: MakeDecoder, tmp_path: Path) -> None:
    """C026, C050, C123, C139: heads, type, inputs and paths are those of the graph."""
    written = save(decoder(execution_provider="cpu", dtype="f32"), tmp_path / "out")
    assert written["genai_config"] == {
        "model": {
            "type": "decoder",
            "context_length": 64,
            "vocab_size": 64,
            "bos_token_id": 1,
            "eos_token_id": [2, 5],
            "pad_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_size": 16,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 0.9,
            "repetition_penalty": 1.0,
            "num_beams": 1,
            "max_length": 64,
            "past_present_share_buffer": True,
        },
    }
    assert (tmp_path / "out" / "model.onnx").is_file()
    assert "genai_config.json" in written["mobius"]["files"]
    assert written["mobius"]["generation"] == {
        "context_length": 64,
        "shared_cache": True,
        "bos_token_id": 1,
        "eos_token_ids": [2, 5],
        "pad_token_id": 0,
        "search": {"do_sample": True, "top_p": 0.9},
        "recompute_length": None,
        "genai_refusal": None,
    }


@pytest.mark.parametrize(
    ("ep", "dtype", "shared", "options"),
    [
        ("cpu", "f32", True, []),
        ("cpu", "f16", False, []),  # GroupQueryAttention is fused in float32 only
        ("default", "f32", False, []),
        ("onnx-standard", "f32", False, []),
        (
            *("cuda", "f16", True),
            [{"cuda": {"enable_cuda_graph": "0", "enable_skip_layer_norm_strict_mode": "1"}}],
        ),
        (
            *("cuda", "f32", False),
            [{"cuda": {"enable_cuda_graph": "0", "enable_skip_layer_norm_strict_mode": "1"}}],
        ),
        ("dml", "f16", True, [{"dml": {"enable_graph_capture": "0"}}]),
        (
            *("webgpu", "f32", True),
            [{"webgpu": {"enableGraphCapture": "0", "validationMode": "basic"}}],
        ),
        ("trt-rtx", "f16", True, [{"NvTensorRtRtx": {"enable_cuda_graph": "1"}}]),
        # Nothing to capture: the cache moves with every token.
        ("trt-rtx", "f32", False, [{"NvTensorRtRtx": {"enable_cuda_graph": "0"}}]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of fusions that an EP has for other dtypes
def test_each_ep(
    decoder: MakeDecoder, tmp_path: Path, ep: str, dtype: str, shared: bool, options: list[Any]
) -> None:
    """C051, C079: one buffer where GroupQueryAttention is everywhere; options by their names."""
    written = save(decoder(execution_provider=ep, dtype=dtype), tmp_path / "out")
    config = written["genai_config"]
    assert config["search"]["past_present_share_buffer"] is shared
    assert config["model"]["decoder"]["session_options"]["provider_options"] == options
    assert written["mobius"]["generation"]["shared_cache"] is shared


def test_an_ep_of_ones_own(decoder: MakeDecoder, tmp_path: Path) -> None:
    written = save(decoder(execution_provider=CAPABLE, dtype="f16"), tmp_path / "out")
    options = written["genai_config"]["model"]["decoder"]["session_options"]["provider_options"]
    assert options == [{"mine": {"memory": "low", "capture": "1"}}]


def test_control_flow_is_not_captured(decoder: MakeDecoder, tmp_path: Path) -> None:
    """C079, C126: branches are chosen on the host; memory of loops is not planned ahead."""
    package = decoder(execution_provider=CAPABLE, dtype="f16")
    loop = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        g (int64 n, bool c) => (int64 y) {
            y = Loop (n, c, n) <body = b (int64 i, bool k, int64 s) => (bool k2, int64 s2)
                { k2 = Identity (k) s2 = Add (s, i) }>
        }
    """)
    node = next(iter(loop.graph))
    loop.graph.remove(node)
    constants = [
        ir.Value(name=name, const_value=ir.tensor(value, name=name))
        for name, value in (("loop_n", 1), ("loop_c", True))
    ]
    for index, value in enumerate([*constants, constants[0]]):
        package["model"].graph.initializers[str(value.name)] = value
        node.replace_input_with(index, value)
    package["model"].graph.append(node)
    options = save(package, tmp_path / "out")["genai_config"]["model"]["decoder"]["session_options"]
    assert options["enable_mem_pattern"] is False
    assert options["provider_options"] == [{"mine": {"memory": "low", "capture": "0"}}]


def test_there_is_no_sliding_window(tmp_path: Path) -> None:
    """C123: the graph's caches hold every token, of sliding layers too."""
    config = ArchitectureConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        sliding_window=8,
        model_type="mistral",
    )
    package = mobius.build_from_module(CausalLMModel(config), config, execution_provider="cpu")
    written = save(package, tmp_path / "out")["genai_config"]
    assert written["model"]["type"] == "mistral"
    assert "sliding_window" not in written["model"]["decoder"]


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [("llama", "llama"), ("gpt_oss", "gptoss"), ("gpt2", "decoder"), ("olmo2", "decoder")],
)
def test_model_types(decoder: MakeDecoder, tmp_path: Path, model_type: str, expected: str) -> None:
    """C050: the runtime's own names, and its general one for families that it does not know."""
    package = decoder(execution_provider="cpu")
    assert package.config is not None
    package.config = dataclasses.replace(package.config, model_type=model_type)
    assert save(package, tmp_path / "out")["genai_config"]["model"]["type"] == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # No padding token: the first that ends a text, as one number.
        (GenerationSettings(eos=(1, 6)), {"eos_token_id": [1, 6], "pad_token_id": 1}),
        (GenerationSettings(eos=(1,), pad=3), {"eos_token_id": [1], "pad_token_id": 3}),
        # Beyond the vocabulary of 64.
        (
            GenerationSettings(bos=64, eos=(7, 200), pad=99),
            {"eos_token_id": [7], "pad_token_id": 7},
        ),
    ],
)
def test_special_tokens(
    decoder: MakeDecoder,
    tmp_path: Path,
    settings: GenerationSettings,
    expected: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C007, C125."""
    written = save(decoder(execution_provider="cpu"), tmp_path / "out", settings)
    model = written["genai_config"]["model"]
    assert {name: value for name, value in model.items() if name.endswith("_id")} == expected
    left_out = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    outside = [token for token in (settings.bos, *settings.eos, settings.pad) if (token or 0) > 63]
    assert len(left_out) == len(outside)
    assert all("the vocabulary ends at 63" in message for message in left_out)


def test_an_unknown_provider_is_refused(decoder: MakeDecoder, tmp_path: Path) -> None:
    mlx = save(decoder(execution_provider="mlx"), tmp_path / "mlx")
    assert refusal(mlx) == "onnxruntime-genai does not know the execution provider 'mlx'."


def test_a_dtype_that_the_cpu_lacks_is_refused(decoder: MakeDecoder, tmp_path: Path) -> None:
    written = save(decoder(execution_provider="default", dtype="bf16"), tmp_path / "out")
    assert refusal(written) == (
        "onnxruntime-genai would run it on the CPU, where ONNX Runtime lacks BFLOAT16."
    )


def test_special_tokens_are_needed(
    decoder: MakeDecoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="mobius")
    package = decoder(execution_provider="cpu")
    reason = refusal(save(package, tmp_path / "none", None))
    assert reason == "its special tokens are not known: it was built from a module."
    assert f"No genai_config.json: {reason}" in caplog.messages
    for settings in (GenerationSettings(pad=0), GenerationSettings(eos=(64,))):
        written = save(package, tmp_path / str(settings.eos), settings)
        assert "names a token that ends a text" in refusal(written)


def test_other_inputs_and_states_are_refused(decoder: MakeDecoder, tmp_path: Path) -> None:
    package = decoder(execution_provider="cpu")
    graph = package["model"].graph
    graph.inputs.append(
        ir.Value(name="pixels", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    )
    assert refusal(save(package, tmp_path / "inputs")) == (
        "onnxruntime-genai does not feed the inputs pixels."
    )
    graph.inputs[-1].name = "past_key_values.7.memory"
    assert refusal(save(package, tmp_path / "states")) == (
        "onnxruntime-genai does not keep the states memory."
    )


def add_state(package: ModelPackage, name: str, shape: list[int | str]) -> None:
    value = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    package["model"].graph.inputs.append(value)


def test_states_that_come_together_are_kept(decoder: MakeDecoder, tmp_path: Path) -> None:
    package = decoder(execution_provider="cpu")
    add_state(package, "past_key_values.1.conv_state", ["batch", 4, 3])
    reason = "onnxruntime-genai keeps conv_state and recurrent_state only for the same layers."
    assert refusal(save(package, tmp_path / "one")) == reason
    add_state(package, "past_key_values.1.recurrent_state", ["batch", 2, 2, 2])
    config = save(package, tmp_path / "both")["genai_config"]
    inputs, outputs = config["model"]["decoder"]["inputs"], config["model"]["decoder"]["outputs"]
    assert inputs["past_conv_names"] == "past_key_values.%d.conv_state"
    assert outputs["present_recurrent_names"] == "present.%d.recurrent_state"
    assert config["search"]["past_present_share_buffer"] is False


def test_layers_of_convolutions_alone_are_named(decoder: MakeDecoder, tmp_path: Path) -> None:
    package = decoder(execution_provider="cpu")
    assert package.config is not None
    package.config = dataclasses.replace(package.config, num_hidden_layers=4, layer_types=None)
    for layer in (2, 3):
        add_state(package, f"past_key_values.{layer}.conv_state", ["batch", 4, 3])
    model = save(package, tmp_path / "out")["genai_config"]["model"]
    assert model["type"] == "lfm2"
    assert model["decoder"]["layer_types"] == ["full_attention"] * 2 + ["conv"] * 2
    assert "past_recurrent_names" not in model["decoder"]["inputs"]


def test_keys_and_values_of_two_shapes_are_refused(decoder: MakeDecoder, tmp_path: Path) -> None:
    package = decoder(execution_provider="cpu")
    package["model"].graph.inputs[-1].shape = ir.Shape(["batch", 2, "past_sequence_length", 8])
    assert refusal(save(package, tmp_path / "out")) == (
        "keys and values of layer 1 differ in shape, and onnxruntime-genai makes values as it "
        "makes keys."
    )


def test_a_graph_without_keys_is_refused(decoder: MakeDecoder, tmp_path: Path) -> None:
    package = decoder(execution_provider="cpu")
    for value in package["model"].graph.inputs[3:]:
        layer = str(value.name).split(".")[1]
        part = "conv_state" if str(value.name).endswith("key") else "recurrent_state"
        value.name = f"past_key_values.{layer}.{part}"
    assert "no cache of keys and values" in refusal(save(package, tmp_path / "out"))


def test_what_is_no_text_decoder_has_no_entry(
    make_package: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    written = save(make_package(), tmp_path / "out")
    assert written["mobius"]["generation"] is None
    assert "genai_config" not in written


def test_a_loaded_package_keeps_it(decoder: MakeDecoder, tmp_path: Path) -> None:
    written = save(decoder(execution_provider="cpu"), tmp_path / "out")
    ModelPackage.load(tmp_path / "out").save(tmp_path / "again")
    for name in ("genai_config.json", "mobius.json"):
        again = json.loads((tmp_path / "again" / name).read_text(encoding="utf-8"))
        assert again == written[name.removesuffix(".json")]


def test_a_loaded_package_for_another_provider_has_none(
    decoder: MakeDecoder, tmp_path: Path
) -> None:
    """The one that it was loaded with names the old provider, and is not carried on."""
    save(decoder(execution_provider="cpu"), tmp_path / "out")
    assert (tmp_path / "out" / "genai_config.json").exists()
    loaded = ModelPackage.load(tmp_path / "out")
    report = mobius.optimize_model(loaded["model"], "webgpu", "f32")
    webgpu = mobius.get_ep("webgpu")
    again = loaded.with_build(ep=webgpu, dtype=ir.DataType.FLOAT, reports={"model": report})
    again.save(tmp_path / "again")
    assert not (tmp_path / "again" / "genai_config.json").exists()
    before, manifest = (
        json.loads((tmp_path / name / "mobius.json").read_text()) for name in ("out", "again")
    )
    assert manifest["execution_provider"] == "webgpu"
    assert "genai_config.json" not in manifest["files"]
    assert manifest["generation"] == before["generation"] | {
        "genai_refusal": "it was loaded, and built again for another execution provider."
    }
    assert ModelPackage.load(tmp_path / "again").ep == "webgpu"


def test_the_name_is_taken(decoder: MakeDecoder, tmp_path: Path) -> None:
    theirs = tmp_path / "GENAI_config.json"
    theirs.write_text("{}")
    package = decoder(execution_provider="cpu").with_source(
        name="org/name", revision="0", files=[theirs], generation=SETTINGS
    )
    with pytest.raises(OSError, match=r"already has a GENAI_config\.json"):
        package.save(tmp_path / "out")


def test_built_in_names_are_the_runtime_s() -> None:
    keys = {name: get_ep(name).runtime_names.genai for name in ("cuda", "dml", "webgpu", "trt-rtx")}
    assert keys == {"cuda": "cuda", "dml": "dml", "webgpu": "webgpu", "trt-rtx": "NvTensorRtRtx"}
