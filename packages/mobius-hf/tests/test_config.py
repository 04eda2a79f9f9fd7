"""`config.json` in every spelling gives the same architecture, and bad ones are refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from mobius_components import ArchitectureConfig
from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError
from mobius_hf.registry import find_architecture

PATH = Path("folder/config.json")
SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
HEADS = {"num_key_value_heads": 4}


def _convert(model_type: str, *, through_transformers: bool = True, **fields: Any) -> Any:
    raw = {"model_type": model_type, **SIZES, **HEADS, **fields}
    before = json.dumps(raw)
    architecture = find_architecture(model_type, config=PATH, has_own_code=False)
    config = architecture.to_config(raw, PATH, through_transformers=through_transformers)
    assert json.dumps(raw) == before, "the caller's config was changed"
    return config


both_ways = pytest.mark.parametrize("through", [True, False], ids=["transformers", "raw json"])


@both_ways
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_c130_missing_fields_get_the_defaults_of_transformers(
    model_type: str, through: bool
) -> None:
    import transformers

    config = _convert(model_type, through_transformers=through)
    config_class: Any = transformers.CONFIG_MAPPING[model_type]
    reference = config_class(**SIZES, **HEADS)
    assert config.head_dim == getattr(reference, "head_dim", 16)
    assert config.num_key_value_heads == 4
    assert config.max_position_embeddings == reference.max_position_embeddings
    assert config.rms_norm_eps == reference.rms_norm_eps
    assert config.hidden_act == reference.hidden_act
    assert config.tie_word_embeddings == reference.tie_word_embeddings
    assert config.rope_theta == reference.rope_parameters["rope_theta"]
    assert config.rope_scaling is None
    assert config.sliding_window == getattr(reference, "sliding_window", None)
    assert config.dtype == ir.DataType.FLOAT
    assert config.model_type == model_type


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_our_defaults_are_those_of_transformers(model_type: str) -> None:
    import transformers

    architecture = find_architecture(model_type, config=PATH, has_own_code=False)
    config_class: Any = transformers.CONFIG_MAPPING[model_type]
    fields = config_class.default_config_fields()
    assert architecture.defaults
    assert {name: fields[name] for name in architecture.defaults} == dict(architecture.defaults)


@both_ways
@pytest.mark.parametrize(
    ("stated", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, ir.DataType.BFLOAT16),
        ({"dtype": "bfloat16"}, ir.DataType.BFLOAT16),
        ({"dtype": "float16", "torch_dtype": "bfloat16"}, ir.DataType.FLOAT16),
        ({"dtype": None, "torch_dtype": "torch.float16"}, ir.DataType.FLOAT16),
        ({}, ir.DataType.FLOAT),
    ],
)
def test_c053_dtype(through: bool, stated: dict[str, Any], dtype: ir.DataType) -> None:
    assert _convert("llama", through_transformers=through, **stated).dtype == dtype


def test_a_dtype_that_no_graph_is_built_in() -> None:
    with pytest.raises(CheckpointConfigError, match=r"dtype is 'float8_e4m3fn'; needed: one of"):
        _convert("llama", dtype="float8_e4m3fn")


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
SPELLINGS: list[dict[str, Any]] = [
    {"rope_theta": 1e6, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    {"rope_theta": 1e6, "rope_scaling": {"type": "llama3", **LLAMA3}},
    {"rope_theta": 1e6, "rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA3}},
    {"rope_parameters": {"rope_theta": 1e6, "rope_type": "llama3", **LLAMA3}},
    {"rope_theta": 1e6, "rope_parameters": {"rope_type": "llama3", **LLAMA3}},
    {"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "llama3", **LLAMA3}}},
    {
        "rope_theta": 1e6,
        "rope_parameters": {"full_attention": {"type": "llama3", **LLAMA3}},
    },
]


@both_ways
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_c006_rope_spellings(through: bool, spelling: dict[str, Any], model_type: str) -> None:
    config = _convert(model_type, through_transformers=through, **spelling)
    assert config.rope_theta == 1e6
    assert config.rope_scaling == {"rope_type": "llama3", **LLAMA3}


@both_ways
@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 1e6, "rope_scaling": None},
        {"rope_theta": 1e6},
        {"rope_theta": 1e6, "rope_scaling": {}},
        {"rope_theta": 1e6, "rope_scaling": {"type": "default"}},
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": None}},
    ],
)
def test_c006_c011_unscaled_rope(through: bool, spelling: dict[str, Any]) -> None:
    config = _convert("llama", through_transformers=through, **spelling)
    assert (config.rope_theta, config.rope_scaling) == (1e6, None)


@both_ways
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "llama3", **LLAMA3},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 512,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "beta_fast": 16,
            "truncate": False,
        },
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 512,
        },
    ],
)
def test_c031_every_scaling_goes_through_whole(through: bool, scaling: dict[str, Any]) -> None:
    config = _convert("llama", through_transformers=through, rope_scaling=scaling)
    assert config.rope_scaling == scaling


@both_ways
def test_c031_su_is_longrope(through: bool) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = _convert("llama", through_transformers=through, rope_scaling={"type": "su", **factors})
    assert config.rope_scaling["rope_type"] == "longrope"
    assert config.rope_scaling["original_max_position_embeddings"] == 2048


@both_ways
@pytest.mark.parametrize("rope_type", ["llama3", "yarn"])
def test_original_length_defaults_to_the_length(through: bool, rope_type: str) -> None:
    scaling = {**LLAMA3, "rope_type": rope_type} if rope_type == "llama3" else {"factor": 4.0}
    scaling = {**scaling, "rope_type": rope_type}
    scaling.pop("original_max_position_embeddings", None)
    config = _convert(
        "llama", through_transformers=through, max_position_embeddings=777, rope_scaling=scaling
    )
    assert config.rope_scaling["original_max_position_embeddings"] == 777


@pytest.mark.parametrize("rope_type", ["mrope", "default"])
@both_ways
def test_c043_axes_of_positions_are_one_in_text(through: bool, rope_type: str) -> None:
    """The position of a token of text is the same on each axis: no section makes a difference."""
    sections = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    scaling = {"type": rope_type, "rope_theta": 5e4, **sections}
    config = _convert("llama", through_transformers=through, rope_parameters=scaling)
    assert (config.rope_theta, config.rope_scaling) == (5e4, None)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_scaling": {"type": "ntk", "factor": 2.0}},
            "rope_scaling.type is 'ntk'; .* one of default",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "factor"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}},
            "no alpha, which rope_type 'dynamic' does not use",
        ),
        ({"rope_parameters": {"full_attention": None}}, "an object for each layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; .* needs 1.0"),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5; .* needs 1.0",
        ),
    ],
)
@both_ways
def test_c031_rope_that_would_be_wrong_is_refused(
    through: bool, rope: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        _convert("llama", through_transformers=through, **rope)


def test_layers_with_different_rotary_embeddings_are_refused() -> None:
    with pytest.raises(CheckpointConfigError, match="the same rotary embedding for every layer"):
        _convert(
            "qwen3",
            use_sliding_window=True,
            sliding_window=8,
            max_window_layers=2,
            rope_parameters={
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        )


FULL, SLIDING = "full_attention", "sliding_attention"


@both_ways
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("fields", "window", "layer_types"),
    [
        ({"use_sliding_window": False, "sliding_window": 8}, None, (FULL,) * 4),
        ({"sliding_window": 8}, None, (FULL,) * 4),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
            8,
            (FULL, FULL, SLIDING, SLIDING),
        ),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4},
            None,
            (FULL,) * 4,
        ),
        (
            {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
            None,
            (FULL,) * 4,
        ),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "max_window_layers": 0,
                "layer_types": [SLIDING, FULL, SLIDING, FULL],
            },
            8,
            (SLIDING, FULL, SLIDING, FULL),
        ),
    ],
)
def test_c013_windows(
    through: bool,
    model_type: str,
    fields: dict[str, Any],
    window: int | None,
    layer_types: tuple[str, ...],
) -> None:
    config = _convert(model_type, through_transformers=through, **fields)
    assert (config.sliding_window, config.layer_types) == (window, layer_types)


@both_ways
def test_c013_sliding_layers_without_a_window(through: bool) -> None:
    with pytest.raises(CheckpointConfigError, match="use_sliding_window and sliding_window"):
        _convert("qwen2", through_transformers=through, layer_types=[SLIDING] * 4)


@both_ways
@pytest.mark.parametrize(
    ("fields", "window"),
    [({"sliding_window": None}, None), ({"sliding_window": 8}, 8), ({}, 4096)],
)
def test_c001_mistral_windows(through: bool, fields: dict[str, Any], window: int | None) -> None:
    config = _convert("mistral", through_transformers=through, **fields)
    assert [config.window(layer) for layer in range(4)] == [window] * 4


@both_ways
def test_layer_types_that_contradict_the_family(through: bool) -> None:
    mixed = [FULL, SLIDING, FULL, SLIDING]
    for model_type in ("llama", "mistral"):
        with pytest.raises(CheckpointConfigError, match=r"layer_types is .*for each layer"):
            _convert(model_type, through_transformers=through, layer_types=mixed)
    assert _convert("llama", through_transformers=through, layer_types=[FULL] * 4).layer_types


@both_ways
@pytest.mark.parametrize(
    ("model_type", "fields", "biases"),
    [
        ("llama", {}, (False, False, False)),
        ("llama", {"attention_bias": True}, (True, True, False)),
        ("llama", {"mlp_bias": True}, (False, False, True)),
        ("qwen2", {}, (True, False, False)),
        ("qwen2", {"attention_bias": True}, (True, False, False)),
        ("qwen3", {}, (False, False, False)),
        ("qwen3", {"attention_bias": True}, (True, True, False)),
        ("mistral", {}, (False, False, False)),
    ],
)
def test_c063_biases(
    through: bool, model_type: str, fields: dict[str, Any], biases: tuple[bool, ...]
) -> None:
    config = _convert(model_type, through_transformers=through, **fields)
    found = (config.attention_bias, config.attention_output_bias, config.mlp_bias)
    assert found == biases


@both_ways
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_c026_head_dim_is_the_files(through: bool, model_type: str) -> None:
    config: ArchitectureConfig = _convert(
        model_type, through_transformers=through, head_dim=32, num_key_value_heads=2
    )
    assert (config.head_dim, config.num_key_value_heads) == (32, 2)
    assert config.qk_norm == ("head" if model_type == "qwen3" else None)


@both_ways
@pytest.mark.parametrize("missing", SIZES)
def test_a_missing_required_field_is_named(through: bool, missing: str) -> None:
    with pytest.raises(CheckpointConfigError) as caught:
        _convert("llama", through_transformers=through, **{missing: None})
    assert f"{PATH} lacks '{missing}', which every 'llama' config has." in str(caught.value)


def test_a_misspelt_required_field_is_suggested() -> None:
    with pytest.raises(CheckpointConfigError, match="Did you mean 'hidden_size' by 'hiden_size'"):
        _convert("llama", hidden_size=None, hiden_size=64)


@both_ways
def test_fields_that_are_not_read_are_refused_with_their_values(through: bool) -> None:
    with pytest.raises(CheckpointConfigError) as caught:
        _convert(
            "llama", through_transformers=through, attention_multiplier=0.5, logits_scaling=8.0
        )
    message = str(caught.value)
    assert "attention_multiplier = 0.5, logits_scaling = 8.0" in message
    assert "'llama' architecture does not read" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 8},
        {"per_layer_config": {"0": {"num_key_value_heads": 2}}},
        {"is_encoder_decoder": True},
        {"rope_interleaved": True},
    ],
)
def test_meaningful_fields_of_other_families_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(CheckpointConfigError, match=next(iter(fields))):
        _convert("llama", **fields)


@both_ways
def test_a_bias_flag_that_the_family_ignores_is_refused(through: bool) -> None:
    with pytest.raises(CheckpointConfigError, match=r"attention_bias is False; .* needs True, the"):
        _convert("qwen2", through_transformers=through, attention_bias=False)


@both_ways
def test_fields_that_do_not_matter_are_accepted(through: bool) -> None:
    config = _convert(
        "llama",
        through_transformers=through,
        attention_multiplier=None,
        _attn_implementation_autoset=True,
        initializer_range=0.1,
        use_cache=False,
        repetition_penalty=1.1,
        transformers_version="4.31.0",
        is_encoder_decoder=False,
        add_cross_attention=False,
        pruned_heads={},
        is_decoder=True,
        rope_interleaved=False,
        pretraining_tp=2,
        quantization_config={"quant_method": "fp8"},
    )
    assert config == _convert("llama")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_scaling": [1]}, "rope_(scaling|parameters)"),
        ({"hidden_act": "quick_brown"}, "hidden_act is 'quick_brown'; a 'llama' config needs one"),
        ({"num_key_value_heads": 3}, "is 3; .* a divisor of num_attention_heads, which is 4"),
    ],
)
@both_ways
def test_values_that_cannot_be_built(through: bool, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointConfigError, match=message) as caught:
        _convert("llama", through_transformers=through, **fields)
    assert str(PATH) in str(caught.value)


def test_what_transformers_refuses_is_told() -> None:
    with pytest.raises(CheckpointConfigError, match=f"transformers refuses {PATH} as a 'llama'"):
        _convert("llama", hidden_size=63, head_dim=16)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), (b"\xff", "is not JSON"), ("[1]", "holds a JSON list; needed")],
)
def test_a_config_that_is_no_object(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CheckpointConfigError, match=message):
        read_config(path)


@pytest.mark.parametrize("name", ["num_hidden_layers", "num_attention_heads"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_count_of_nothing_is_named(tmp_path, name, value):
    raw = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        name: value,
    }
    architecture = find_architecture("llama", config=tmp_path / "config.json", has_own_code=False)
    with pytest.raises(CheckpointConfigError, match=f"{name} is {value}; a 'llama' config needs"):
        architecture.to_config(raw, tmp_path / "config.json")


def test_a_user_without_torch_is_not_told_so() -> None:
    script = """
        import importlib.util, sys
        find = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *at: None if name == "torch" else find(name, *at)
        sys.modules["torch"] = None
        from mobius_hf.transformers_config import resolve
        assert resolve({}, "llama", "config.json")["model_type"] == "llama"
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stderr == ""
