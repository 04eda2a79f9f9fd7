"""What the families' graphs are made of once they are optimised for the CPU, without weights.

Cases C001, C011, C021, C026, C033, C035, C037, C041, C042, C129.
"""

from __future__ import annotations

import contextlib

import pytest
from tests.parity.reference import CONFIGS, VARIANTS, make_config

import mobius
from mobius_components.config import LATENT_ATTENTION
from mobius_components.layers.mixers import mixer_of
from mobius_ir_rules.testing import op_counts

MODELS = [*CONFIGS, *VARIANTS]
ALIBI = {"bloom", "falcon-alibi", "mpt"}
FUSED = "com.microsoft::GroupQueryAttention"


@pytest.fixture
def package(tmp_path, request):
    """The package of `request.param`, optimised for the CPU."""
    make_config(request.param).save_pretrained(tmp_path)
    refused = request.param in ALIBI
    with pytest.warns(UserWarning, match="Where") if refused else contextlib.nullcontext():
        return mobius.build(tmp_path, execution_provider="cpu", dtype="f32", load_weights=False)


def rotates(model) -> bool:
    """Whether anything in the main graph rotates, alone or inside of a fused attention."""
    return any(
        node.op_type == "RotaryEmbedding"
        or (node.op_type == "GroupQueryAttention" and node.attributes.get_int("do_rotary", 0))
        for node in model.graph
    )


def fused(package) -> list:
    return [node for node in package["model"].graph if node.op_type == "GroupQueryAttention"]


@pytest.mark.parametrize("package", MODELS, indirect=True)
def test_attention_is_fused_where_the_operator_can_be_it(package):
    """It has no ALiBi, no heads of two sizes, and no keys of another layer."""
    config, model = package.config, package["model"]
    layers = range(config.num_hidden_layers)
    attending = [n for n in layers if mixer_of(config, n).attends]
    fusible = [
        n
        for n in attending
        if config.position_embedding != "alibi"
        and config.layer_types[n] != LATENT_ATTENTION
        and config.kv_source(n) is None
    ]
    found = op_counts(model)
    assert (found[FUSED], found["Attention"]) == (
        len(fusible),
        len(attending) - len(fusible),
    )
    assert rotates(model) == any(config.rope(n) is not None for n in attending)


@pytest.mark.parametrize("package", ["hunyuan_v1_dense"], indirect=True)
def test_norms_after_rotation_keep_it_out_of_attention(package):
    assert op_counts(package["model"])["RotaryEmbedding"] == 2 * 3
    assert [node.attributes.get_int("do_rotary", 0) for node in fused(package)] == [0, 0, 0]


SCALES = {"gemma2": 7**-0.5, "gemma4_text": 1.0, "granite": 0.3, "gpt_oss": 16**-0.5}


@pytest.mark.parametrize(("package", "scale"), SCALES.items(), ids=SCALES, indirect=["package"])
def test_c021_scale_of_the_scores(package, scale):
    scales = [node.attributes["scale"].as_float() for node in fused(package)]
    assert scales == pytest.approx([scale] * len(scales))


# Of the layers that are fused; 0 for a mask that is a bias, in which a window is included.
WINDOWS = {
    "mistral": [4, 4, 4],
    "gemma2": [4, -1, 4],
    "gpt_oss": [4, -1, 4],
    # The last layer with keys of its kind gives them to others, so that its mask is a bias.
    "gemma3n_text": [4, 4, 0, 4],
}


@pytest.mark.parametrize(("package", "windows"), WINDOWS.items(), ids=WINDOWS, indirect=["package"])
def test_c001_windows(package, windows):
    found = [
        0
        if len(node.inputs) > 10 and node.inputs[10] is not None
        else node.attributes.get_int("local_window_size", -1)
        for node in fused(package)
    ]
    assert found == windows


@pytest.mark.parametrize("package", ["gpt_oss"], indirect=True)
def test_c033_sinks_are_an_input(package):
    sinks = [node.inputs[11] for node in fused(package)]
    assert [list(sink.shape) for sink in sinks] == [[4]] * 3


def states(package) -> dict[str, tuple]:
    values = [*package["model"].graph.inputs, *package["model"].graph.outputs]
    return {
        value.name: tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
        for value in values
        if value.name.startswith(("past_key_values", "present"))
    }


HEADS = {
    "gemma4_text": {0: (2, 16, 16), 1: (2, 16, 16), 2: (2, 32, 32), 3: (2, 16, 16)},
    "gemma4_text-experts": {
        **{n: (2, 16, 16) for n in (0, 1, 3)},
        **{n: (1, 32, 32) for n in (2, 4, 5)},
    },
    "deepseek_v3": {n: (4, 24, 20) for n in range(3)},
}


@pytest.mark.parametrize(("package", "heads"), HEADS.items(), ids=HEADS, indirect=["package"])
def test_c026_c035_states_of_each_layer(package, heads):
    """Number and size of heads are the layer's own; one that reads another's has no states."""
    expected = {}
    for layer, (count, *sizes) in heads.items():
        for role, size in zip(("key", "value"), sizes, strict=True):
            for name, length in (("past_key_values", "past"), ("present", "total")):
                shape = ("batch", count, f"{length}_sequence_length", size)
                expected[f"{name}.{layer}.{role}"] = shape
    assert states(package) == expected
