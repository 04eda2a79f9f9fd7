"""`save(weights="reference")`: packages whose graphs point into the checkpoint's own files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

import mobius
from mobius.cli import app
from mobius.errors import NonFiniteWeightsError, PackageSaveError
from mobius.package import ModelPackage
from mobius_hf.mapped_tensor import open_safetensors

WIDTH, HEAD, INNER, VOCAB, LAYERS = 64, 16, 96, 48, 2
TOKENS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int64)

Write = Callable[..., Path]


def config(model_type: str) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM" if model_type == "llama" else "Phi3ForCausalLM"],
        "model_type": model_type,
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": WIDTH // HEAD,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }


def shapes(model_type: str) -> dict[str, tuple[int, ...]]:
    keys = 2 * HEAD
    split = {
        "self_attn.q_proj": (WIDTH, WIDTH),
        "self_attn.k_proj": (keys, WIDTH),
        "self_attn.v_proj": (keys, WIDTH),
        "mlp.gate_proj": (INNER, WIDTH),
        "mlp.up_proj": (INNER, WIDTH),
    }
    joined = {
        "self_attn.qkv_proj": (WIDTH + 2 * keys, WIDTH),
        "mlp.gate_up_proj": (2 * INNER, WIDTH),
    }
    each = {
        "input_layernorm": (WIDTH,),
        "post_attention_layernorm": (WIDTH,),
        **(split if model_type == "llama" else joined),
        "self_attn.o_proj": (WIDTH, WIDTH),
        "mlp.down_proj": (WIDTH, INNER),
    }
    return {
        "model.embed_tokens.weight": (VOCAB, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCAB, WIDTH),
        **{
            f"model.layers.{layer}.{name}.weight": shape
            for layer in range(LAYERS)
            for name, shape in each.items()
        },
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> Write:
    """Return a function that writes a checkpoint in two shards into `tmp_path / "checkpoint"`."""

    def write(model_type: str = "llama", dtype: Any = np.float32) -> Path:
        rng = np.random.default_rng(0)
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        stated = config(model_type) | {"dtype": np.dtype(dtype).name}
        (folder / "config.json").write_text(json.dumps(stated))
        (folder / "tokenizer.json").write_text("{}")
        tensors = {
            name: (1 + 0.1 * rng.standard_normal(shape, np.float32)).astype(dtype)
            if len(shape) == 1
            else (rng.standard_normal(shape, np.float32) / 8).astype(dtype)
            for name, shape in shapes(model_type).items()
        }
        names = sorted(tensors)
        shards = {
            "model-00001-of-00002.safetensors": names[: len(names) // 2],
            "model-00002-of-00002.safetensors": names[len(names) // 2 :],
        }
        for file, content in shards.items():
            save_file({name: tensors[name] for name in content}, folder / file)
        weight_map = {name: file for file, content in shards.items() for name in content}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return write


def logits(package: Path) -> np.ndarray:
    session = ort.InferenceSession(package / "model.onnx", providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {}
    for each in session.get_inputs():
        if each.name == "input_ids":
            feeds[each.name] = TOKENS
        elif each.name == "attention_mask":
            feeds[each.name] = np.ones_like(TOKENS)
        elif each.name == "position_ids":
            feeds[each.name] = np.tile(np.arange(TOKENS.shape[1]), (2, 1))
        else:
            feeds[each.name] = np.zeros((2, 2, 0, HEAD), np.float32)
    return np.asarray(session.run(["logits"], feeds)[0])


def external(package: Path) -> dict[str, dict[str, str]]:
    """Return location, offset and length of each initializer that is not in the graph's file."""
    proto = onnx.load(package / "model.onnx", load_external_data=False)
    return {
        tensor.name: {item.key: item.value for item in tensor.external_data}
        for tensor in proto.graph.initializer
        if tensor.external_data
    }


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("ep", ["default", "cpu", "onnx-standard"])
@pytest.mark.parametrize("model_type", ["llama", "phi3"])
def test_the_numbers_are_those_of_a_normal_save(
    checkpoint: Write, tmp_path: Path, model_type: str, ep: str
) -> None:
    package = mobius.build(checkpoint(model_type), execution_provider=ep)
    package.save(tmp_path / "normal")
    package.save(tmp_path / "referring", weights="reference")
    np.testing.assert_array_equal(logits(tmp_path / "referring"), logits(tmp_path / "normal"))
    package.save(tmp_path / "checkpoint", weights="reference")
    np.testing.assert_array_equal(logits(tmp_path / "checkpoint"), logits(tmp_path / "normal"))
    loaded = ModelPackage.load(tmp_path / "checkpoint")
    loaded.save(tmp_path / "again")
    assert content(tmp_path / "again")["model.onnx"] == content(tmp_path / "normal")["model.onnx"]
    written = content(tmp_path / "normal")["model.onnx.data"]
    assert content(tmp_path / "again")["model.onnx.data"] == written


def test_only_what_was_computed_is_written(checkpoint: Write, tmp_path: Path) -> None:
    """The CPU's graph packs query, key and value; all else is as the checkpoint has it."""
    folder = checkpoint()
    before = content(folder)
    mobius.build(folder, execution_provider="cpu").save(folder, weights="reference")
    after = content(folder)
    assert {name: after[name] for name in before} == before
    new = after.keys() - before.keys()
    assert new == {"model.onnx", "model.onnx.data", "mobius.json", *(new & {"genai_config.json"})}
    packed = LAYERS * 4 * (WIDTH + 4 * HEAD) * WIDTH
    tables = 2 * 4 * 2048 * HEAD // 2  # cosines and sines of llama's 2048 positions
    assert len(after["model.onnx.data"]) == pytest.approx(packed + tables, abs=4096)
    manifest = json.loads(after["mobius.json"])
    assert manifest["models"]["model"]["references"] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    places = external(folder)
    assert places["lm_head.weight"]["location"] == "model-00001-of-00002.safetensors"
    assert places["model.norm.weight"]["location"] == "model-00002-of-00002.safetensors"


def test_rows_of_a_joined_tensor_are_a_range_of_its_bytes(
    checkpoint: Write, tmp_path: Path
) -> None:
    """Phi 3 stores gate and up as one; each is a part of it, and FusedMatMul takes it as it is."""
    folder = checkpoint("phi3")
    mobius.build(folder, execution_provider="default").save(folder, weights="reference")
    places = external(folder)
    gate, up = (places[f"model.layers.1.mlp.{name}_proj.weight"] for name in ("gate", "up"))
    size = 4 * INNER * WIDTH
    assert gate["location"] == up["location"] != "model.onnx.data"
    assert int(up["offset"]) == int(gate["offset"]) + size
    assert gate["length"] == up["length"] == str(size)


def test_files_elsewhere_are_copied_whole(checkpoint: Write, tmp_path: Path) -> None:
    folder, calls = checkpoint(), []
    package = mobius.build(folder)
    package.save(tmp_path / "out", weights="reference", progress=lambda *call: calls.append(call))
    out = content(tmp_path / "out")
    for name, data in content(folder).items():
        if name.startswith("model-") or name == "tokenizer.json":
            assert out[name] == data
    assert {name for _, _, name in calls} >= {"model-00001-of-00002.safetensors", "lm_head.weight"}
    assert calls[-1][0] == calls[-1][1]
    shutil.rmtree(folder)
    assert np.isfinite(logits(tmp_path / "out")).all()


def test_a_hub_cache_of_links_is_copied(checkpoint: Write, tmp_path: Path) -> None:
    """A hub's snapshot holds links to blobs; runtimes follow none out of the graph's folder."""
    folder = checkpoint()
    snapshot, blobs = tmp_path / "snapshots" / "commit", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in folder.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(os.path.relpath(blobs / path.name, snapshot))
    package = mobius.build(snapshot)
    package.save(tmp_path / "out", weights="reference")
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert np.isfinite(logits(tmp_path / "out")).all()
    with pytest.raises(PackageSaveError, match=r"is a link to .*Save into another folder"):
        package.save(snapshot, weights="reference")
    assert not (snapshot / "model.onnx").exists()


def test_a_tensor_between_its_elements_is_written_anew(tmp_path: Path, checkpoint: Write) -> None:
    """Safetensors headers of old writers end anywhere: C087."""
    folder = checkpoint()
    for path in sorted(folder.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = data[8 : 8 + length] + b" " * 2  # data now start two bytes later
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    package = mobius.build(folder)
    with pytest.raises(PackageSaveError, match="nothing to refer to"):
        package.save(tmp_path / "referring", weights="reference")
    package.save(tmp_path / "normal")
    assert np.isfinite(logits(tmp_path / "normal")).all()


def test_another_dtype_leaves_nothing_to_refer_to(checkpoint: Write, tmp_path: Path) -> None:
    package = mobius.build(checkpoint(dtype=ml_dtypes.bfloat16), dtype="f32")
    with pytest.raises(PackageSaveError, match="Build in the checkpoint's own dtype"):
        package.save(tmp_path / "out", weights="reference")
    assert not (tmp_path / "out").exists()


def test_bfloat16_is_referred_to(checkpoint: Write, tmp_path: Path) -> None:
    package = mobius.build(checkpoint(dtype=ml_dtypes.bfloat16), execution_provider="cuda")
    package.save(tmp_path / "out", weights="reference")
    place = external(tmp_path / "out")["model.layers.0.mlp.down_proj.weight"]
    file = tmp_path / "out" / place["location"]
    start, length = int(place["offset"]), int(place["length"])
    assert length == 2 * WIDTH * INNER
    package.save(tmp_path / "normal")
    normal = external(tmp_path / "normal")["model.layers.0.mlp.down_proj.weight"]
    at = int(normal["offset"])
    written = (tmp_path / "normal" / "model.onnx.data").read_bytes()[at : at + length]
    assert file.read_bytes()[start : start + length] == written


def test_weights_that_are_not_written_are_checked_all_the_same(
    checkpoint: Write, tmp_path: Path
) -> None:
    folder = checkpoint()
    place = external_of_checkpoint(folder, "model.norm.weight")
    with place[0].open("r+b") as file:
        file.seek(place[1])
        file.write(np.array([np.nan, np.inf], np.float32).tobytes())
    package = mobius.build(folder)
    before = content(folder)
    with pytest.raises(NonFiniteWeightsError, match=r"model\.norm\.weight: 2 NaN or infinite"):
        package.save(folder, weights="reference")
    assert content(folder) == before
    package.allow_non_finite = True
    package.save(folder, weights="reference")
    assert (folder / "model.onnx").exists()


def external_of_checkpoint(folder: Path, name: str) -> tuple[Path, int]:
    """Return the file and the first byte of a tensor of a checkpoint."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    path = folder / index["weight_map"][name]
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return path, 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]


def test_what_is_in_the_folder_already_is_kept(checkpoint: Write) -> None:
    folder = checkpoint()
    package = mobius.build(folder)
    (folder / "model.onnx").write_bytes(b"mine")
    with pytest.raises(PackageSaveError, match="overwrite it"):
        package.save(folder, weights="reference")
    with pytest.raises(PackageSaveError, match=r"no mobius\.json, so it is not of a package"):
        package.save(folder, weights="reference", overwrite=True)
    (folder / "model.onnx").unlink()
    package.save(folder, weights="reference")
    with pytest.raises(PackageSaveError, match="overwrite it"):
        package.save(folder, weights="reference")
    first = content(folder)
    package.save(folder, weights="reference", overwrite=True)
    assert content(folder) == first


def test_the_other_way_still_refuses_the_source_folder(checkpoint: Write) -> None:
    folder = checkpoint()
    before = content(folder)
    for overwrite in (False, True):
        with pytest.raises(PackageSaveError, match="holds what this package is read from"):
            mobius.build(folder).save(folder, overwrite=overwrite)
    assert content(folder) == before


def test_two_files_of_one_name(checkpoint: Write, tmp_path: Path) -> None:
    package = mobius.build(checkpoint())
    other = tmp_path / "other"
    other.mkdir()
    data = np.ones(WIDTH, np.float32)
    save_file({"norm": data}, other / "model-00001-of-00002.safetensors")
    tensor = open_safetensors(other / "model-00001-of-00002.safetensors")["norm"]
    package["model"].graph.initializers["model.norm.weight"].const_value = tensor
    with pytest.raises(PackageSaveError, match="would both be model-00001"):
        package.save(tmp_path / "out", weights="reference")


def test_a_package_without_weights_has_nothing_to_refer_to(
    checkpoint: Write, tmp_path: Path
) -> None:
    package = mobius.build(checkpoint(), load_weights=False)
    with pytest.raises(PackageSaveError, match="has no weights yet"):
        package.save(tmp_path / "out", weights="reference")


def test_on_the_command_line(checkpoint: Write, tmp_path: Path) -> None:
    folder = checkpoint()
    arguments = ["build", str(folder), str(folder), "--ep", "cpu"]
    assert CliRunner().invoke(app, arguments).exit_code == 1
    done = CliRunner().invoke(app, [*arguments, "--weights", "reference"])
    assert done.exit_code == 0, done.output
    assert np.isfinite(logits(folder)).all()
    refused = CliRunner().invoke(app, [*arguments, "--weights", "link"])
    assert refused.exit_code == 1
    assert "'copy' or 'reference'" in refused.output


def test_other_ways_are_refused(checkpoint: Write, tmp_path: Path) -> None:
    with pytest.raises(PackageSaveError, match="needed: 'copy' or 'reference'"):
        mobius.build(checkpoint()).save(tmp_path / "out", weights="link")


@pytest.mark.parametrize("weights", ["copy", "reference"])
def test_a_checkpoint_that_has_changed_since_is_not_read(
    checkpoint: Write, tmp_path: Path, weights: str
) -> None:
    """Its bytes would be numbers all the same: of other weights, or of none."""
    folder, out = checkpoint(), tmp_path / "out"
    package = mobius.build(folder, execution_provider="cpu")
    file = folder / "model-00002-of-00002.safetensors"
    data, before = file.read_bytes(), file.stat().st_mtime_ns
    file.unlink()
    with pytest.raises(PackageSaveError, match=r"model-00002.* is gone since .*Build or load the"):
        package.save(out, weights=weights)
    file.write_bytes(data[:-4] + bytes(4))
    os.utime(file, ns=(before + 1, before + 1))
    with pytest.raises(PackageSaveError, match=r"model-00002.* has changed since"):
        package.save(out, weights=weights)
    assert not out.exists()
    mobius.build(folder, execution_provider="cpu").save(out, weights=weights)


def test_a_package_that_has_changed_since_is_not_read(checkpoint: Write, tmp_path: Path) -> None:
    package = mobius.build(checkpoint(), execution_provider="cpu")
    package.save(tmp_path / "out")
    loaded = ModelPackage.load(tmp_path / "out")
    with (tmp_path / "out" / "model.onnx.data").open("ab") as file:
        file.write(bytes(64))
    with pytest.raises(PackageSaveError, match=r"model\.onnx\.data has changed since"):
        loaded.save(tmp_path / "again")


def test_a_loaded_package_is_saved_where_it_is(checkpoint: Write, tmp_path: Path) -> None:
    """It refers to its own data, and its other files are not in the way: they stay."""
    folder, out = checkpoint(), tmp_path / "out"
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    mobius.build(folder, execution_provider="cpu").save(out)
    before, numbers = content(out), logits(out)
    assert "genai_config.json" in before
    for _ in range(2):
        ModelPackage.load(out).save(out, weights="reference", overwrite=True)
        after = content(out)
        changed = {name for name in before.keys() | after.keys() if before[name] != after[name]}
        assert changed <= {"mobius.json", "model.onnx"}  # where the weights are
        np.testing.assert_array_equal(logits(out), numbers)
    ModelPackage.load(out).save(tmp_path / "again")
    assert content(tmp_path / "again") == before
