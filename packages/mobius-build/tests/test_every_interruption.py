"""A save that is stopped at any of its calls of the file system leaves all or nothing.

Each call is stopped before it does anything and after it has done all, by an interruption and by a
full disk, in each way to save. Case: what a crash between two moves leaves behind.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from mobius.errors import PackageSaveError
from mobius.external_data import _EntryWriter
from mobius.package import ModelPackage

ModelOf = Callable[..., ir.Model]

TEXT = """<ir_version: 10, opset_import: ["" : 24]>
g (float[2, 64] x, float[64, 64] w, float[64, 64] v) => (float[2, 64] y) {
  h = MatMul(x, w)
  y = MatMul(h, v)
}"""
CALLS: tuple[tuple[Any, str], ...] = (
    *((os, name) for name in ("copy_file_range", "fsync", "mkdir", "rename", "rmdir", "unlink")),
    *((Path, name) for name in ("mkdir", "rename", "rmdir", "unlink", "write_bytes", "write_text")),
    *((shutil, name) for name in ("copyfile", "rmtree")),
    (_EntryWriter, "__call__"),  # a part of a tensor is written
)
FULL = OSError(28, "No space left on device")


class Stopper:
    """Counts calls, and stops one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.names: list[str] = []
        self.stop_at: tuple[int, str] | None = None
        self.error: BaseException = KeyboardInterrupt()

    def start(self, stop_at: tuple[int, str] | None, error: BaseException) -> None:
        self.calls, self.names, self.stop_at, self.error = 0, [], stop_at, error

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            self.names.append(function.__qualname__)
            number = self.calls
            self.pass_by((number, "before"))
            result = function(*arguments, **named)
            self.pass_by((number, "after"))
            return result

        return call

    def pass_by(self, place: tuple[int, str]) -> None:
        if place == self.stop_at:
            self.stop_at = None
            raise self.error


@pytest.fixture
def stopper() -> Iterator[Stopper]:
    made = Stopper()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # it takes its time
        for owner, name in CALLS:
            if hasattr(owner, name):
                patch.setattr(owner, name, made.wrap(getattr(owner, name)))
        yield made


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def package(model_of: ModelOf, folder: Path, seed: int) -> ModelPackage:
    """Return a package with one weight in a file of `folder` and one in memory."""
    values = np.random.default_rng(seed).standard_normal((2, 64, 64), np.float32)
    folder.mkdir(exist_ok=True)
    (folder / f"weights{seed}.bin").write_bytes(values[0].tobytes())
    stored = ir.ExternalTensor(
        folder / f"weights{seed}.bin",
        *(0, values[0].nbytes, ir.DataType.FLOAT),
        shape=ir.Shape([64, 64]),
        name="w",
    )
    made = ModelPackage({"model": model_of(TEXT)}, roles={"model": "decoder"})
    made.apply_weights({"w": stored, "v": ir.tensor(values[1], name="v")})
    return made


WAYS: dict[str, tuple[str, str, bool]] = {
    "new": ("deep/out", "copy", False),
    "empty folder": ("empty", "copy", False),
    "over a package": ("old", "copy", True),
    "referring": ("out", "reference", False),
    "in place": ("source", "reference", False),
    "in place, over a package": ("source", "reference", True),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_or_nothing(model_of: ModelOf, tmp_path: Path, stopper: Stopper, way: str) -> None:
    target, weights, overwrite = WAYS[way]
    folder = tmp_path / "folder"

    def prepare() -> ModelPackage:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if target == "empty":
            (folder / target).mkdir()
        elif overwrite:
            package(model_of, folder / "source", 1).save(folder / target, weights=weights)
        return package(model_of, folder / "source", 2)

    stopper.start(None, FULL)
    made = prepare()
    before = content(folder)
    stopper.start(None, FULL)
    made.save(folder / target, weights=weights, overwrite=overwrite)
    total, names, complete, wrong = stopper.calls, stopper.names, content(folder), []
    assert total > 10

    def writes(call: int) -> bool:
        return names[call - 1].rpartition(".")[2] not in ("rmdir", "rmtree", "unlink")

    places = [(call, when) for call in range(1, total + 1) for when in ("before", "after")]
    for place, error in [
        *((place, KeyboardInterrupt()) for place in places),
        *((place, FULL) for place in places if place[1] == "before" and writes(place[0])),
    ]:
        stopper.start(None, error)
        made = prepare()
        stopper.start(place, error)
        failed = False
        try:
            made.save(folder / target, weights=weights, overwrite=overwrite)
        except (KeyboardInterrupt, PackageSaveError):
            failed = True
        stopper.start(None, error)
        left = content(folder)
        # After the last move the package is there, whatever fails then.
        if left not in (before, complete) or not (failed or left == complete):
            wrong.append((place, names[place[0] - 1 :], error, left.keys() ^ before.keys()))
    assert wrong == []
