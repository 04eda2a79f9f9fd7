"""`weights`: names, ties and collisions (C019, C054, C114, C141)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from mobius_components import ArchitectureConfig
from mobius_hf.architectures.base import DecoderArchitecture
from mobius_hf.architectures.llama import ARCHITECTURE
from mobius_hf.errors import CheckpointError
from mobius_hf.mapped_tensor import open_safetensors
from mobius_hf.weights import map_weights

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ONES, TWOS = np.full((4, 2), 1, np.float32), np.full((4, 2), 2, np.float32)


def _config(*, tie: bool) -> ArchitectureConfig:
    return ArchitectureConfig(
        vocab_size=4,
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        tie_word_embeddings=tie,
    )


def _map(
    tmp_path: Path,
    tensors: dict[str, Any],
    *,
    tie: bool = False,
    architecture: DecoderArchitecture = ARCHITECTURE,
) -> dict[str, float]:
    """Return the first value of each mapped tensor."""
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    mapped = map_weights(architecture, _config(tie=tie), open_safetensors(path))
    assert all(tensor.name == name for name, tensor in mapped.items())
    return {name: float(tensor.numpy().reshape(-1)[0]) for name, tensor in mapped.items()}


@pytest.mark.parametrize(
    ("tie", "stored", "expected"),
    [
        (True, {TABLE: ONES}, {TABLE: 1.0}),
        (True, {TABLE: ONES, HEAD: ONES.copy()}, {TABLE: 1.0}),
        (True, {HEAD: TWOS}, {TABLE: 2.0}),
        (True, {}, {}),
        (False, {TABLE: ONES, HEAD: TWOS}, {TABLE: 1.0, HEAD: 2.0}),
        (False, {TABLE: ONES, HEAD: ONES.copy()}, {TABLE: 1.0, HEAD: 1.0}),
        (False, {TABLE: ONES}, {TABLE: 1.0}),
        (False, {HEAD: TWOS}, {HEAD: 2.0}),
    ],
)
def test_c054_c141_ties(
    tmp_path: Path, tie: bool, stored: dict[str, Any], expected: dict[str, float]
) -> None:
    """What is missing then (no head, no table) is for strict binding to report."""
    assert _map(tmp_path, stored, tie=tie) == expected


@pytest.mark.parametrize(
    "head", [TWOS, ONES.astype(np.float16), ONES[:3].copy(), np.where(np.eye(4, 2), -ONES, ONES)]
)
def test_c054_tied_but_different_is_an_error_with_the_choice(tmp_path: Path, head: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        _map(tmp_path, {TABLE: ONES, HEAD: head}, tie=True)
    message = str(caught.value)
    assert "set tie_word_embeddings to false" in message
    assert f"remove {HEAD!r}" in message


def test_ties_are_compared_to_the_last_byte(tmp_path: Path) -> None:
    table = np.zeros((1 << 13, 1 << 10), np.float32)  # two chunks of comparison
    head = table.copy()
    head[-1, -1] = 1
    with pytest.raises(CheckpointError, match="with different values"):
        _map(tmp_path, {TABLE: table, HEAD: head}, tie=True)


def test_nan_in_a_tied_tensor_equals_itself(tmp_path: Path) -> None:
    table = np.full((4, 2), np.nan, np.float32)
    assert list(_map(tmp_path, {TABLE: table, HEAD: table.copy()}, tie=True)) == [TABLE]


@pytest.mark.parametrize("prefix", ["", "model."])
def test_c019_names_with_and_without_prefix(tmp_path: Path, prefix: str) -> None:
    stored = {
        f"{prefix}embed_tokens.weight": ONES,
        f"{prefix}layers.0.mlp.up_proj.weight": TWOS,
        f"{prefix}norm.weight": ONES,
        HEAD: TWOS,
    }
    assert _map(tmp_path, stored) == {
        TABLE: 1.0,
        "model.layers.0.mlp.up_proj.weight": 2.0,
        "model.norm.weight": 1.0,
        HEAD: 2.0,
    }


def test_c019_unknown_names_are_kept_for_binding_to_report(tmp_path: Path) -> None:
    assert _map(tmp_path, {"score.weight": ONES, "normal.weight": TWOS}) == {
        "score.weight": 1.0,
        "normal.weight": 2.0,
    }


def test_stored_rotary_tables_are_left_out(tmp_path: Path) -> None:
    stored = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": ONES,
        "model.rotary_emb.inv_freq": ONES,
        "rotary_emb.inv_freq": ONES,
        "my_rotary_emb.inv_freq": TWOS,
    }
    assert _map(tmp_path, stored) == {"my_rotary_emb.inv_freq": 2.0}


def test_two_tensors_for_one_parameter(tmp_path: Path) -> None:
    stored = {TABLE: ONES, "embed_tokens.weight": TWOS}
    with pytest.raises(CheckpointError, match=f"are both for the parameter '{TABLE}'"):
        _map(tmp_path, stored)


class _Swapped(DecoderArchitecture):
    model_type = "swapped"
    renames = ((r"^a$", "b"), (r"^b$", "a"))


def test_c114_names_that_swap(tmp_path: Path) -> None:
    assert _map(tmp_path, {"a": ONES, "b": TWOS}, architecture=_Swapped()) == {"b": 1.0, "a": 2.0}


def test_dtype_of_the_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    array = np.ones((4, 2), ml_dtypes.bfloat16)
    save_file({TABLE: array}, path)
    mapped = map_weights(ARCHITECTURE, _config(tie=True), open_safetensors(path))
    assert mapped[TABLE].numpy().dtype == ml_dtypes.bfloat16
