"""`repository`: folders never touch the network; the hub is asked for one commit (C074, C075)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest
from huggingface_hub import errors

from mobius.sources import SourceOptions
from mobius_hf.errors import HubError, ModelNotFoundError
from mobius_hf.repository import Folder, Hub, open_repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {"config.json": "{}", "tokenizer.json": "[]", "model.safetensors": "x"}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a hub cache with `FILES` of `owner/name`, laid out as huggingface_hub does."""
    root = tmp_path / "hub"
    repository = root / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    for ref in ("main", "v1"):
        (repository / "refs" / ref).write_text(COMMIT)
    for name, content in FILES.items():
        (repository / "blobs" / name).write_text(content)
        os.symlink(f"../../blobs/{name}", snapshot / name)
    return root


class FakeHub:
    """Answers `hf_hub_download` and `list_repo_files`, and keeps what it was asked."""

    def __init__(self, root: Path) -> None:
        self.snapshot = root / "models--owner--name" / "snapshots" / COMMIT
        self.downloads: list[dict[str, Any]] = []
        self.listings: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def download(self, repo_id: str, filename: str, **options: Any) -> str:
        self.downloads.append({"repo_id": repo_id, "filename": filename, **options})
        if self.error is not None:
            raise self.error
        return str(self.snapshot / filename)

    def list_files(self, repo_id: str, **options: Any) -> list[str]:
        self.listings.append({"repo_id": repo_id, **options})
        if self.error is not None:
            raise self.error
        return [*FILES, "onnx/model.onnx"]


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(cache)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", fake.list_files)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    return fake


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_c074_a_folder_needs_no_network(tmp_path: Path, no_sockets: None) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "sub").mkdir()
    repository = open_repository(str(tmp_path), SourceOptions(revision="ignored"))
    assert isinstance(repository, Folder)
    assert repository.revision is None
    assert repository.names() == {"config.json"}
    assert repository.path("config.json") == tmp_path / "config.json"


def test_a_file_that_a_folder_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    message = rf"The folder {tmp_path} has no config.json; it has: a.txt"
    with pytest.raises(ModelNotFoundError, match=message) as caught:
        open_repository(str(tmp_path), SourceOptions()).path("config.json")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("name", ["./gone", "../gone", "/gone/x", "~/gone", "a/b/c", "a\\b"])
def test_paths_that_do_not_exist_are_not_asked_of_the_hub(name: str, hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match=r"The folder .* does not exist"):
        open_repository(name, SourceOptions())
    assert hub.downloads == []


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelNotFoundError, match="is a file; needed: the folder"):
        open_repository(str(tmp_path / "model.gguf"), SourceOptions())


@pytest.mark.parametrize("offline", [True, False])
def test_c075_every_call_carries_revision_token_and_cache(
    hub: FakeHub, tmp_path: Path, offline: bool
) -> None:
    options = SourceOptions(revision="v1", token="secret", cache_dir=tmp_path, offline=offline)
    repository = open_repository("owner/name", options)
    for name in sorted(repository.names()):
        assert repository.path(name).name == name
    assert repository.names() == set(FILES)
    common = {"repo_id": "owner/name", "token": "secret"}
    where = {"cache_dir": tmp_path, "local_files_only": offline, "tqdm_class": None}
    downloads = {**common, **where}
    asked = ["config.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert hub.downloads == [
        {**downloads, "filename": name, "revision": "v1" if first else COMMIT}
        for first, name in zip([True, False, False, False], asked, strict=True)
    ]
    assert hub.listings == ([] if offline else [{**common, "revision": COMMIT}])
    assert repository.revision == COMMIT


def test_only_files_of_the_top_folder_are_listed(hub: FakeHub) -> None:
    assert open_repository("owner/name", SourceOptions()).names() == set(FILES)


def test_offline_with_the_real_library(cache: Path, no_sockets: None) -> None:
    options = SourceOptions(cache_dir=cache, offline=True)
    repository = open_repository("owner/name", options)
    assert isinstance(repository, Hub)
    assert repository.revision == COMMIT
    assert repository.names() == set(FILES)
    assert repository.path("tokenizer.json").read_text() == "[]"
    with pytest.raises(ModelNotFoundError, match=r"Offline, and vocab.txt of owner/name at"):
        repository.path("vocab.txt")


def test_offline_mode_of_the_environment_is_kept(
    cache: Path, no_sockets: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    repository = open_repository("owner/name", SourceOptions(cache_dir=cache))
    assert repository.where == f"The cached hub repository owner/name at {COMMIT}"
    assert repository.names() == set(FILES)


def test_offline_and_not_in_the_cache(tmp_path: Path, no_sockets: None) -> None:
    options = SourceOptions(cache_dir=tmp_path, offline=True)
    with pytest.raises(
        ModelNotFoundError, match=r"Offline, and config.json of owner/other at main"
    ):
        open_repository("owner/other", options)


def _response() -> mock.Mock:
    return mock.Mock(headers={})


def _http(kind: type[Exception]) -> Callable[[], Exception]:
    return lambda: kind("said the hub", response=_response())  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("make", "expected", "message"),
    [
        (
            _http(errors.RepositoryNotFoundError),
            ModelNotFoundError,
            "'owner/name' is neither an existing folder nor a hub repository that you can see",
        ),
        (_http(errors.GatedRepoError), HubError, "owner/name is restricted. Accept its terms"),
        (
            _http(errors.RevisionNotFoundError),
            ModelNotFoundError,
            "owner/name has no revision 'v9'",
        ),
        (
            _http(errors.RemoteEntryNotFoundError),
            ModelNotFoundError,
            "owner/name at v9 has no config.json",
        ),
        (
            lambda: errors.LocalEntryNotFoundError("no connection"),
            HubError,
            "The hub cannot be reached, and config.json of owner/name at v9 is not in the cache",
        ),
        (
            lambda: errors.HFValidationError("bad id"),
            ModelNotFoundError,
            "'owner/name' is neither an existing folder nor a valid hub id: bad id",
        ),
        (_http(errors.HfHubHTTPError), HubError, "The hub failed to give config.json of owner"),
        (lambda: ConnectionError("reset"), HubError, "The hub failed to give config.json .*reset"),
    ],
)
def test_what_the_hub_says_is_explained(
    hub: FakeHub, make: Callable[[], Exception], expected: type[Exception], message: str
) -> None:
    hub.error = make()
    with pytest.raises(expected, match=message) as caught:
        open_repository("owner/name", SourceOptions(revision="v9"))
    assert caught.value.__cause__ is hub.error


def test_an_invalid_id_with_the_real_library() -> None:
    with pytest.raises(ModelNotFoundError, match="neither an existing folder nor a valid hub id"):
        open_repository("owner/na me", SourceOptions(offline=True))


def test_listing_falls_back_to_the_cache_without_a_network(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    repository = open_repository("owner/name", SourceOptions())
    hub.error = ConnectionError("no route")
    assert repository.names() == set(FILES)
    assert "Going on with the files in the cache" in caplog.text


def test_listing_that_the_hub_refuses_is_an_error(hub: FakeHub) -> None:
    repository = open_repository("owner/name", SourceOptions())
    hub.error = _http(errors.HfHubHTTPError)()
    with pytest.raises(HubError, match="failed to give the list of files"):
        repository.names()
