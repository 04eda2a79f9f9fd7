"""GGUF files of a hub repository, by name: `owner/name/file.gguf`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import huggingface_hub
import pytest
from huggingface_hub import errors

import mobius
from mobius.sources import SourceOptions, find_source
from mobius_hf.errors import CheckpointError, GgufMissingError, ModelNotFoundError
from mobius_hf.gguf.source import source
from mobius_hf.repository import open_repository
from mobius_hf.source import source as huggingface

WriteGguf = Callable[..., Path]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PARTS = [f"big/model-{part:05}-of-00003.gguf" for part in (1, 2, 3)]


class FakeHub:
    """A repository `owner/name`: answers downloads and lists, and keeps what it was asked."""

    def __init__(self, root: Path) -> None:
        self.served = root / "served"
        self.snapshot = root / "cache" / "models--owner--name" / "snapshots" / COMMIT
        self.asked: list[dict[str, Any]] = []

    def add(self, name: str, path: Path) -> None:
        target = self.served / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)

    def download(self, repo_id: str, filename: str, **options: Any) -> str:
        self.asked.append({"repo_id": repo_id, "filename": filename, **options})
        if not (self.served / filename).is_file():
            response = mock.Mock(headers={})
            raise errors.RemoteEntryNotFoundError("no such file", response=response)
        target = self.snapshot / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.served / filename, target)
        return str(target)

    def list_files(self, repo_id: str, **options: Any) -> list[str]:
        assert repo_id == "owner/name"
        return [str(path.relative_to(self.served)) for path in self.served.rglob("*.*")]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", fake.list_files)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    return fake


def split(write_gguf: WriteGguf, hub: FakeHub, tensors: dict[str, Any]) -> None:
    """Serve a model in three parts, in a folder of the repository."""
    names = list(tensors)
    for index, part in enumerate(PARTS):
        path = write_gguf("part.gguf", tensors={name: tensors[name] for name in names[index::3]})
        # The writer of the fixture knows no parts: their keys come last in its metadata.
        keys = {"split.no": index, "split.count": 3, "split.tensors.count": len(names)}
        hub.add(part, _with_keys(path, keys))


def _with_keys(path: Path, keys: dict[str, int]) -> Path:
    """Write a file again, with further keys."""
    reader, target = gguf.GGUFReader(path), path.with_name("keys.gguf")
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for key, value in keys.items():
        writer.add_uint16(key, value)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, tensor.data.reshape(shape), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("owner/name/model.gguf", source),
        ("owner/name/folder/Model.GGUF", source),
        ("owner/name.gguf", huggingface),  # a repository may be called so
        ("owner/name", huggingface),
        ("./owner/name/model.gguf", huggingface),
        ("/owner/name/model.gguf", huggingface),
        ("owner/name/model.safetensors", huggingface),
    ],
)
def test_which_names_are_claimed(name: str, expected: object) -> None:
    assert find_source(name) is expected


def test_a_file_is_fetched_with_all_options(
    hub: FakeHub, write_gguf: WriteGguf, tmp_path: Path
) -> None:
    hub.add("model.gguf", write_gguf())
    package = mobius.build(
        "owner/name/model.gguf", revision="v1", token="secret", cache_dir=tmp_path / "cache"
    )
    package.save(tmp_path / "out")
    assert f'"revision": "{COMMIT}"' in (tmp_path / "out" / "mobius.json").read_text()
    common = {"repo_id": "owner/name", "token": "secret", "cache_dir": tmp_path / "cache"}
    first, *others = hub.asked
    assert {**common, "filename": "model.gguf", "revision": "v1"}.items() <= first.items()
    assert others
    assert all({**common, "revision": COMMIT}.items() <= each.items() for each in others)


def test_all_parts_are_fetched_when_the_first_is_named(
    hub: FakeHub, write_gguf: WriteGguf, llama_tensors: dict[str, Any], tmp_path: Path
) -> None:
    split(write_gguf, hub, llama_tensors)
    opened = source.open(f"owner/name/{PARTS[0]}", SourceOptions())
    assert {each["filename"] for each in hub.asked} == set(PARTS)
    whole = source.open(str(write_gguf("whole.gguf")), SourceOptions())
    ours, theirs = opened.load_weights(), whole.load_weights()
    assert ours.keys() == theirs.keys()
    assert all((ours[name].numpy() == theirs[name].numpy()).all() for name in ours)
    assert opened.revision == COMMIT


def test_a_part_that_the_hub_lacks(
    hub: FakeHub, write_gguf: WriteGguf, llama_tensors: dict[str, Any]
) -> None:
    split(write_gguf, hub, llama_tensors)
    (hub.served / PARTS[1]).unlink()
    with pytest.raises(ModelNotFoundError, match=r"has no big/model-00002-of-00003\.gguf"):
        mobius.build(f"owner/name/{PARTS[0]}")


def test_offline_with_the_real_library(write_gguf: WriteGguf, tmp_path: Path) -> None:
    repository = tmp_path / "cache" / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    shutil.move(write_gguf(), snapshot / "model.gguf")
    options = SourceOptions(cache_dir=tmp_path / "cache", offline=True)
    assert source.open("owner/name/model.gguf", options).revision == COMMIT
    with pytest.raises(ModelNotFoundError, match=r"Offline, and other\.gguf of owner/name"):
        source.open("owner/name/other.gguf", options)


def test_nothing_is_fetched_without_the_library(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise GgufMissingError("no library")

    monkeypatch.setattr("mobius_hf.gguf.source.tensor_types", missing)
    with pytest.raises(GgufMissingError):
        mobius.build("owner/name/model.gguf")
    assert hub.asked == []


def test_another_file_than_there_is(hub: FakeHub, write_gguf: WriteGguf) -> None:
    hub.add("Model-Q4_K_M.gguf", write_gguf())
    with pytest.raises(
        ModelNotFoundError,
        match=r"has no model\.gguf\. It has models in GGUF: Model-Q4_K_M\.gguf\. Name one of "
        r"them: owner/name/Model-Q4_K_M\.gguf",
    ):
        mobius.build("owner/name/model.gguf")


def test_a_repository_of_gguf_files_alone(
    hub: FakeHub, write_gguf: WriteGguf, llama_tensors: dict[str, Any]
) -> None:
    """Of a model in parts, the first is named."""
    split(write_gguf, hub, llama_tensors)
    hub.add("model-Q8_0.gguf", write_gguf())
    with pytest.raises(
        ModelNotFoundError,
        match=r"has no config\.json\. It has models in GGUF: big/model-00001-of-00003\.gguf, "
        r"model-Q8_0\.gguf\. Name one of them: owner/name/big/model-00001-of-00003\.gguf$",
    ):
        mobius.build("owner/name")


def test_gguf_files_beside_a_config(hub: FakeHub, write_gguf: WriteGguf, tmp_path: Path) -> None:
    hub.add("model-Q8_0.gguf", write_gguf())
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24,'
        ' "num_hidden_layers": 1, "num_attention_heads": 2}'
    )
    hub.add("config.json", tmp_path / "config.json")
    with pytest.raises(
        CheckpointError, match=r"no weights in safetensors\. It has models in GGUF: model-Q8_0"
    ):
        mobius.build("owner/name")


def test_a_repository_of_something_else(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    hub.add("notes.txt", tmp_path / "notes.txt")
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json\.$"):
        open_repository("owner/name", SourceOptions())
