"""`mobius.build("model.gguf")`: which source is asked, and what it opens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import mobius
from mobius.errors import NonFiniteWeightsError, PackageSaveError, WeightsError
from mobius.package import ModelPackage
from mobius.sources import SourceOptions, find_source
from mobius_hf.errors import ModelNotFoundError
from mobius_hf.gguf.source import source
from mobius_hf.source import source as huggingface

WriteGguf = Callable[..., Path]
Arrays = dict[str, np.ndarray]

WIDTH, HEADS = 64, 4


def test_files_and_folders_are_claimed(write_gguf: WriteGguf, tmp_path: Path) -> None:
    path = write_gguf("folder/Model.GGUF")
    assert find_source(str(path)) is source
    assert find_source(str(path.parent)) is source
    (path.parent / "config.json").write_text("{}")
    assert find_source(str(path.parent)) is huggingface
    assert find_source("org/name.gguf") is huggingface  # of a hub, nothing here
    (tmp_path / "notes.txt").write_text("")
    assert find_source(str(tmp_path / "notes.txt")) is huggingface


def test_by_name(write_gguf: WriteGguf) -> None:
    path = write_gguf("folder/model.gguf")
    (path.parent / "config.json").write_text("{}")
    assert not mobius.build(path, source="gguf", load_weights=False).is_loaded


def test_it_builds_and_saves(write_gguf: WriteGguf, tmp_path: Path) -> None:
    path = write_gguf("folder/model.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    package = mobius.build(path.parent)
    package.save(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "mobius.json").read_text())
    assert manifest["dtype"] == "FLOAT"
    assert "generation_config.json" in manifest["files"]
    loaded = ModelPackage.load(tmp_path / "out")
    assert loaded.is_loaded
    assert (tmp_path / "out" / "generation_config.json").read_text() == "{}\n"


def test_rows_of_queries_and_keys_are_in_halves(
    write_gguf: WriteGguf, llama_tensors: Arrays
) -> None:
    """Row `2i + j` of a head in the file is row `j * size/2 + i` of the checkpoint."""
    weights = source.open(str(write_gguf()), SourceOptions()).load_weights()
    stored = llama_tensors
    for name, heads in (("q", HEADS), ("k", 2)):
        found = weights[f"model.layers.0.self_attn.{name}_proj.weight"].numpy()
        rows = stored[f"blk.0.attn_{name}.weight"].reshape(heads, 8, 2, WIDTH)
        for half in range(2):
            np.testing.assert_array_equal(
                found.reshape(heads, 2, 8, WIDTH)[:, half], rows[:, :, half]
            )
    value = weights["model.layers.0.self_attn.v_proj.weight"].numpy()
    np.testing.assert_array_equal(value, stored["blk.0.attn_v.weight"])


def test_a_tensor_that_is_not_known_is_left_over(
    write_gguf: WriteGguf, llama_tensors: Arrays
) -> None:
    tensors = llama_tensors | {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    with pytest.raises(WeightsError, match=r"left over: blk\.0\.attn_sinks\.weight"):
        mobius.build(write_gguf(tensors=tensors))


def test_frequencies_that_old_files_store_are_left_out(
    write_gguf: WriteGguf, llama_tensors: Arrays
) -> None:
    tensors = llama_tensors | {"blk.0.attn_rot_embd.weight": np.ones(8, np.float32)}
    assert mobius.build(write_gguf(tensors=tensors)).is_loaded


def test_non_finite_numbers_are_named(
    write_gguf: WriteGguf, llama_tensors: Arrays, tmp_path: Path
) -> None:
    tensors = llama_tensors
    tensors["blk.0.attn_q.weight"][3, 5] = np.inf
    package = mobius.build(write_gguf(tensors=tensors), execution_provider="cpu")
    with pytest.raises(NonFiniteWeightsError, match=r"attn_q\.weight|q_proj\.weight"):
        package.save(tmp_path / "out")


def test_a_graph_can_point_into_the_file(write_gguf: WriteGguf, tmp_path: Path) -> None:
    """Plain matrices have the bytes that ONNX stores, whatever the file is called."""
    path = write_gguf("folder/model.gguf")
    package = mobius.build(path)
    package.save(tmp_path / "normal")
    package.save(path.parent, weights="reference")
    normal, pointing = (ModelPackage.load(each) for each in (tmp_path / "normal", path.parent))
    for name, value in normal["model"].graph.initializers.items():
        other = pointing["model"].graph.initializers[name].const_value
        assert value.const_value is not None
        assert other is not None
        np.testing.assert_array_equal(value.const_value.numpy(), other.numpy())
    written = (path.parent / "model.onnx.data").stat().st_size
    assert written < (tmp_path / "normal" / "model.onnx.data").stat().st_size


def test_the_file_is_not_replaced(write_gguf: WriteGguf) -> None:
    """Quantised weights are read from it while saving."""
    path = write_gguf("folder/model.gguf", kind=gguf.GGMLQuantizationType.Q8_0)
    package = mobius.build(path)
    with pytest.raises(
        PackageSaveError, match=r"is not empty|holds what this package is read from"
    ):
        package.save(path.parent, overwrite=True)
    assert path.is_file()


def test_several_models_in_a_folder(write_gguf: WriteGguf) -> None:
    path = write_gguf("folder/model.gguf")
    shutil.copyfile(path, path.with_name("other.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"model\.gguf, other\.gguf\. Name the file"):
        mobius.build(path.parent)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="neither a GGUF file nor a folder"):
        source.open(str(tmp_path / "missing.gguf"), SourceOptions())


def test_families_are_listed() -> None:
    listed: list[Any] = [family.model_type for family in source.families()]
    assert "gemma3_text" in listed
    assert listed == sorted(listed)
