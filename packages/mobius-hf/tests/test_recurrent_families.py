"""Configs and tensors of families with state spaces or linear attention, in every spelling.

Case C131.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.parity.reference import make_config

from mobius_components import ArchitectureConfig
from mobius_hf.architectures.qwen3_next import ARCHITECTURE as QWEN3_NEXT
from mobius_hf.architectures.zamba2 import SharedBlockTensor
from mobius_hf.config import read_config
from mobius_hf.errors import CheckpointConfigError, CheckpointError
from mobius_hf.registry import find_architecture

FULL, SLIDING = "full_attention", "sliding_attention"


def convert(folder: Path, model_type: str, change: dict[str, Any]) -> ArchitectureConfig:
    """Return the architecture of a tiny config, some of whose fields are changed in the file."""
    make_config(model_type).save_pretrained(folder)
    path = folder / "config.json"
    raw = {**read_config(path), **change}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
    architecture = find_architecture(model_type, config=path, has_own_code=False)
    return architecture.to_config(read_config(path), path)


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        (
            "lfm2",
            {"layer_types": ["conv", "mamba", "conv"]},
            "a list of 'full_attention' or 'conv'",
        ),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate"),
        ("jamba", {"mamba_inner_layernorms": False}, "mamba_inner_layernorms"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "needs 'rope', 'nope' or null"),
        ("nemotron_h", {"attention_head_dim": 32}, "needs head_dim, which is 16"),
        ("zamba2", {"num_key_value_heads": 2}, "needs num_attention_heads, 4, with use_shared"),
        ("minimax", {"layer_types": [SLIDING] * 3}, "'full_attention' or 'linear_attention'"),
        ("falcon_h1", {"lm_head_multiplier": 0.0}, "needs a number other than zero"),
        ("qwen3_next", {"use_sliding_window": True}, "use_sliding_window"),
        ("zamba2", {"use_shared_mlp_adapter": False}, "use_shared_mlp_adapter"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache is 1; a 'lfm2' config needs an integer"),
        ("mamba", {"conv_kernel": 1}, "conv_kernel is 1; a 'mamba' config needs an integer"),
        ("mamba2", {"conv_kernel": 1}, "conv_kernel is 1; a 'mamba2' config needs an"),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1; a"),
        ("recurrent_gemma", {"conv1d_width": 1}, "conv1d_width is 1; a"),
    ],
)
def test_refused(tmp_path: Path, model_type: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointConfigError, match=message):
        convert(tmp_path, model_type, change)


@pytest.mark.parametrize(
    ("model_type", "change"),
    [
        ("jamba", {"n_ctx": 262144}),
        ("qwen3_next", {"use_sliding_window": False}),
        ("zamba2", {"use_shared_mlp_adapter": True}),
    ],
)
def test_fields_of_published_files_change_nothing(
    tmp_path: Path, model_type: str, change: dict[str, Any]
) -> None:
    assert convert(tmp_path, model_type, change) == convert(tmp_path, model_type, {})


def test_recurrent_gemma_has_heads_of_any_width(tmp_path: Path) -> None:
    assert convert(tmp_path, "recurrent_gemma", {"head_dim": 32}).head_dim == 32


@pytest.mark.parametrize(
    ("model_type", "change", "kinds"),
    [
        ("lfm2", {"layer_types": None, "full_attn_idxs": [1]}, ("short_conv", FULL, "short_conv")),
        ("lfm2", {"layer_types": None, "full_attn_idxs": None}, (FULL,) * 3),
        (
            "qwen3_5_text",
            {"layer_types": None, "full_attention_interval": 2},
            ("gated_delta", FULL, "gated_delta"),
        ),
        (
            "nemotron_h",
            {"layers_block_type": None, "hybrid_override_pattern": "ME*-M"},
            ("mamba2", "feed_forward", FULL, "feed_forward", "mamba2"),
        ),
        (
            "granitemoehybrid",
            {"layer_types": None, "layers_block_type": ["mamba", "attention", "mamba"]},
            ("mamba2", FULL, "mamba2"),
        ),
        ("minimax", {"layer_types": None}, (FULL, "lightning_attention", FULL)),
        ("minimax", {"sliding_window": 4}, ("lightning_attention", SLIDING, "lightning_attention")),
        ("recurrent_gemma", {}, ("rg_lru", "rg_lru", SLIDING)),
    ],
)
def test_layers_in_older_spellings(
    tmp_path: Path, model_type: str, change: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    assert convert(tmp_path, model_type, change).layer_types == kinds


def test_experts_are_where_the_pattern_has_them(tmp_path: Path) -> None:
    pattern = {"layers_block_type": None, "hybrid_override_pattern": "ME*-M"}
    config = convert(tmp_path / "with", "nemotron_h", pattern)
    assert config.moe is not None
    assert config.moe.sparse_layers == (False, True, False, False, False)
    unused = ("moe_intermediate_size", "moe_shared_expert_intermediate_size")
    unused = dict.fromkeys((*unused, "num_experts_per_tok", "routed_scaling_factor"))
    kinds = {"layers_block_type": ["mamba", "mlp"]}
    dense = convert(tmp_path / "without", "nemotron_h", {**unused, **kinds})
    assert dense.moe is None
    assert dense.num_hidden_layers == 2


def test_a_width_that_transformers_computes(tmp_path: Path) -> None:
    """Source: `Lfm2MLP`: two thirds of the stated width, rounded up to a multiple."""
    assert convert(tmp_path / "adjusted", "lfm2", {}).intermediate_size == 64
    stated = {"block_auto_adjust_ff_dim": False}
    assert convert(tmp_path / "as stated", "lfm2", stated).intermediate_size == 96
    older = {"intermediate_size": None, "block_ff_dim": 192, "block_multiple_of": 50}
    assert convert(tmp_path / "older", "lfm2", older).intermediate_size == 150


@pytest.mark.parametrize(
    ("limit", "expected"),
    [([0.0, {"__float__": "Infinity"}], (0.0, float("inf"))), ([0.1, 0.5], (0.1, 0.5))],
)
def test_limits_of_time_steps(tmp_path: Path, limit: Any, expected: tuple[float, float]) -> None:
    mamba2 = convert(tmp_path, "bamba", {"time_step_limit": limit}).mamba2
    assert mamba2 is not None
    assert (mamba2.time_step_min, mamba2.time_step_max) == expected


def test_projections_stored_by_heads_are_taken_apart(tmp_path: Path) -> None:
    """Source: `Qwen3NextGatedDeltaNet.fix_query_key_value_ordering`."""
    config = convert(tmp_path, "qwen3_next", {})
    delta = config.gated_delta
    assert delta is not None
    values = delta.value_heads // delta.key_heads * delta.value_size
    rows = delta.key_heads * (2 * delta.key_size + 2 * values)
    stored = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    ungroup = QWEN3_NEXT.transforms[0]
    match = re.fullmatch(ungroup.pattern, name)
    assert match is not None
    found = {
        parameter: tensor.numpy()
        for parameter, tensor in ungroup.apply(match, ir.tensor(stored), config)
    }
    grouped = stored.reshape(delta.key_heads, -1, 3)
    cuts = np.cumsum([delta.key_size, delta.key_size, values])
    parts = [part.reshape(-1, 3) for part in np.split(grouped, cuts, axis=1)]
    stem = "model.layers.0.linear_attn.in_proj"
    np.testing.assert_array_equal(found[f"{stem}_qkv.weight"], np.concatenate(parts[:3]))
    np.testing.assert_array_equal(found[f"{stem}_z.weight"], parts[3])
    with pytest.raises(CheckpointError, match=r"rows, .* for each of"):
        list(ungroup.apply(match, ir.tensor(stored[1:]), config))


def test_a_shared_block_is_read_once_and_its_adapters_for_each_use(tmp_path: Path) -> None:
    """Layers 1, 2 and 4 use two blocks in turn: 4 repeats what 1 has."""
    config = convert(tmp_path, "zamba2", {})
    transform = SharedBlockTensor(r"model\.layers\.(\d+)\.mixer\.shared_transformer\.(.+)")

    def names(layer: int, rest: str) -> list[str]:
        name = f"model.layers.{layer}.mixer.shared_transformer.{rest}"
        match = re.fullmatch(transform.pattern, name)
        assert match is not None
        return [name for name, _ in transform.apply(match, ir.tensor([1.0]), config)]

    plain = "self_attn.q_proj.weight"
    assert names(1, plain) == ["model.layers.1.mixer.shared_transformer.q_proj.weight"]
    assert names(2, plain) == ["model.layers.2.mixer.shared_transformer.q_proj.weight"]
    assert names(4, plain) == []
    adapter = "self_attn.linear_q_adapter_list"
    assert names(1, f"{adapter}.2.0.weight") == ["model.layers.4.mixer.q_proj_adapter.down"]
    fed = "feed_forward.gate_up_proj_adapter_list"
    assert names(2, f"{fed}.1.1.weight") == ["model.layers.2.mixer.gate_up_proj_adapter.up"]
