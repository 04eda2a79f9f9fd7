"""Weight files come from the hub several at a time, with bytes told as they come."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from mobius.sources import SourceOptions
from mobius_hf.checkpoint import open_checkpoint
from mobius_hf.downloads import Downloads, fetch
from mobius_hf.errors import HubError, ModelNotFoundError
from mobius_hf.repository import open_repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARDS = [f"model-0000{part}-of-00003.safetensors" for part in (1, 2, 3)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a checkpoint in three shards."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    weight_map = {}
    for index, shard in enumerate(SHARDS):
        save_file({f"t{index}": np.full(300_000, index, np.float32)}, folder / shard)
        weight_map[f"t{index}"] = shard
    index_file = folder / "model.safetensors.index.json"
    index_file.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the hub does, of one repository; shards wait until all of them are asked for."""

    folder: Path
    together: threading.Barrier

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        listing = self.path.startswith("/api/models/owner/name/tree/")
        if listing:
            tree = [
                {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0" * 40}
                for path in sorted(self.folder.iterdir())
            ]
            content = json.dumps(tree).encode()
        else:
            path = self.folder / self.path.rpartition("/")[2]
            if not path.is_file():
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = path.read_bytes()
            if body and path.name in SHARDS:
                self.together.wait(20)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json" if listing else "binary/octet-stream")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hash(content) & 0xFFFFFFFF:032x}"')
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """Serve `files` on this machine as the hub's repository `owner/name`."""
    handler = type("Served", (Handler,), {"folder": files, "together": threading.Barrier(3)})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    api = huggingface_hub.HfApi(endpoint=endpoint)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", api.list_repo_files)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_shards_are_fetched_at_once_with_the_real_library(
    hub: type[Handler], files: Path, tmp_path: Path
) -> None:
    """Each shard is held back until all three are asked for: one at a time would wait for ever."""
    calls: list[tuple[int, int, str]] = []
    options = SourceOptions(
        cache_dir=tmp_path / "cache", progress=lambda *call: calls.append(call), token="t"
    )
    checkpoint = open_checkpoint(open_repository("owner/name", options))
    assert {name: tensor.numpy()[0] for name, tensor in checkpoint.items()} == {
        "t0": 0,
        "t1": 1,
        "t2": 2,
    }
    done = [call[0] for call in calls]
    assert done == sorted(done)
    size = sum(path.stat().st_size for path in files.iterdir())
    assert calls[-1][:2] == (size, size)
    assert {name for _, _, name in calls} >= set(SHARDS)


def test_a_shard_that_the_hub_lacks(hub: type[Handler], files: Path, tmp_path: Path) -> None:
    hub.together.abort()
    repository = open_repository("owner/name", SourceOptions(cache_dir=tmp_path / "cache"))
    with pytest.raises(ModelNotFoundError, match=r"has no missing\.safetensors"):
        repository.paths(["config.json", "missing.safetensors"])


def test_no_further_file_is_begun_after_an_error() -> None:
    begun: list[str] = []
    release = threading.Event()

    def path(file: str) -> Path:
        begun.append(file)
        if file == "0":
            raise HubError("refused")
        release.wait(0.2)
        return Path(file)

    with pytest.raises(HubError, match="refused"):
        fetch([str(index) for index in range(100)], path)
    assert len(begun) < 100


def test_bytes_of_a_file_of_unknown_size_are_counted() -> None:
    calls: list[tuple[int, int, str]] = []
    bar = Downloads(lambda *call: calls.append(call)).bar()
    with bar(total=10, initial=4, desc="a", unit="B", name="huggingface_hub.http_get") as first:
        first.update(6)
    with bar(total=None, desc="b") as second:
        second.update(5)
    assert calls == [(10, 10, "a"), (15, 15, "b")]
