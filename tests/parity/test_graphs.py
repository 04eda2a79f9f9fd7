"""What the families' graphs are made of once they are optimised for the CPU, without weights.

Cases C011, C041, C042, C129.
"""

from __future__ import annotations

import contextlib

import pytest
from tests.parity.reference import CONFIGS, VARIANTS, make_config

import mobius
from mobius_ir_rules.testing import op_counts

MODELS = [*CONFIGS, *VARIANTS]
ALIBI = {"bloom", "falcon-alibi", "mpt"}
NO_ROTATION = ALIBI | {"biogpt", "gpt2", "gpt_bigcode", "gpt_bigcode-heads", "gpt_neo"}
NO_ROTATION |= {"opt", "opt-350m"}
FUSED = "com.microsoft::GroupQueryAttention"


@pytest.fixture
def graph(tmp_path, request):
    """The optimised model of `request.param`."""
    make_config(request.param).save_pretrained(tmp_path)
    refused = request.param in ALIBI
    with pytest.warns(UserWarning, match="Where") if refused else contextlib.nullcontext():
        package = mobius.build(tmp_path, execution_provider="cpu", dtype="f32", load_weights=False)
    (model,) = package.values()
    return request.param, model


def rotates(model) -> bool:
    """Whether anything in the main graph rotates, alone or inside of a fused attention."""
    return any(
        node.op_type == "RotaryEmbedding"
        or (node.op_type == "GroupQueryAttention" and node.attributes.get_int("do_rotary", 0))
        for node in model.graph
    )


@pytest.mark.parametrize("graph", MODELS, indirect=True)
def test_attention_is_fused_but_for_alibi(graph):
    name, model = graph
    found = op_counts(model)
    layers = 3
    expected = (0, layers) if name in ALIBI else (layers, 0)
    assert (found[FUSED], found["Attention"]) == expected
    assert rotates(model) == (name not in NO_ROTATION)


@pytest.mark.parametrize("graph", ["hunyuan_v1_dense"], indirect=True)
def test_norms_after_rotation_keep_it_out_of_attention(graph):
    _, model = graph
    assert op_counts(model)["RotaryEmbedding"] == 2 * 3
    fused = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert [node.attributes.get_int("do_rotary", 0) for node in fused] == [0, 0, 0]
