"""A folder is written completely or not at all, whatever happens in the middle."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir
import pytest

from mobius import atomic
from mobius.errors import PackageSaveError
from mobius.package import ModelPackage

MakePackage = Callable[..., ModelPackage]
TensorsFor = Callable[..., dict[str, ir.TensorProtocol]]


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything below a folder, hidden or not: bytes of files, `None` for folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def breaking(error: BaseException) -> ir.TensorProtocol:
    """Return a tensor for `head_weight`, the last to be written, whose data cannot be read."""

    def read() -> ir.TensorProtocol:
        raise error

    return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape([8, 32]))


@pytest.fixture
def broken(
    make_package: MakePackage, tensors_for: TensorsFor
) -> Callable[[BaseException], ModelPackage]:
    """Return a maker of packages that raise in the middle of writing their weights."""

    def make(error: BaseException) -> ModelPackage:
        package = make_package(weights=False)
        package.apply_weights({**tensors_for(package), "head_weight": breaking(error)})
        return package

    return make


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), RuntimeError("broken")])
def test_an_interrupted_save_leaves_nothing(
    broken: Callable[..., ModelPackage], tmp_path: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        broken(error).save(tmp_path / "new" / "out")
    assert tree(tmp_path) == {}


def test_an_interrupted_save_keeps_an_empty_folder(
    broken: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        broken(KeyboardInterrupt()).save(tmp_path / "out")
    assert tree(tmp_path) == {"out": None}


def test_an_interrupted_overwrite_keeps_the_old_package(
    make_package: MakePackage, broken: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    make_package().save(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        broken(KeyboardInterrupt()).save(tmp_path / "out", overwrite=True)
    assert tree(tmp_path) == before


def test_an_error_of_the_file_system_is_explained(
    broken: Callable[..., ModelPackage], tmp_path: Path
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(PackageSaveError, match=r"out failed: .*No space left on device.*Free some"):
        broken(full).save(tmp_path / "out")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("moved", ["old package aside", "new package into place"])
@pytest.mark.parametrize("error", [OSError(errno.EBUSY, "busy"), KeyboardInterrupt()])
def test_a_failed_move_keeps_the_old_package(
    make_package: MakePackage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moved: str,
    error: BaseException,
) -> None:
    make_package().save(tmp_path / "out")
    before = tree(tmp_path)
    rename = Path.rename

    def failing_once(path: Path, target: Path) -> Path:
        is_new = ".tmp-" in path.name
        if is_new != (moved == "new package into place"):
            return rename(path, target)
        monkeypatch.setattr(Path, "rename", rename)
        raise error

    monkeypatch.setattr(Path, "rename", failing_once)
    with pytest.raises((PackageSaveError, KeyboardInterrupt)):
        make_package(seed=1).save(tmp_path / "out", overwrite=True)
    assert tree(tmp_path) == before


def test_a_failed_move_out_of_the_hidden_folder_leaves_the_empty_folder(
    make_package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    rename = Path.rename

    def failing_at_the_manifest(path: Path, target: Path) -> Path:
        if path.name == "mobius.json":
            assert (tmp_path / "out" / "model.onnx").exists()
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing_at_the_manifest)
    with pytest.raises(KeyboardInterrupt):
        make_package().save(tmp_path / "out")
    assert tree(tmp_path) == {"out": None}


def test_a_folder_with_content_is_refused(make_package: MakePackage, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(PackageSaveError, match=r"has no mobius\.json, so it is not a package"):
            make_package().save(tmp_path / "out", overwrite=overwrite)
    assert tree(tmp_path) == before


def test_a_package_is_refused_unless_it_is_to_be_replaced(
    make_package: MakePackage, tmp_path: Path
) -> None:
    make_package().save(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(PackageSaveError, match=r"is not empty.*--overwrite"):
        make_package(seed=1).save(tmp_path / "out")
    assert tree(tmp_path) == before


def test_overwriting_replaces_the_whole_package(make_package: MakePackage, tmp_path: Path) -> None:
    make_package().save(tmp_path / "out")
    (tmp_path / "out" / "left_over.bin").touch()
    (tmp_path / "out").chmod(0o750)
    make_package(seed=1).save(tmp_path / "out", overwrite=True)
    make_package(seed=1).save(tmp_path / "expected")
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "expected"}
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def test_an_empty_folder_stays_the_same_folder(make_package: MakePackage, tmp_path: Path) -> None:
    # It may be a mount point, or the folder that a shell is in.
    out = tmp_path / "out"
    out.mkdir()
    number = out.stat().st_ino
    make_package().save(out)
    assert out.stat().st_ino == number
    assert set(tree(tmp_path)) == {
        "out",
        "out/model.onnx",
        "out/model.onnx.data",
        "out/mobius.json",
    }


def test_a_save_through_a_link_writes_where_it_leads(
    make_package: MakePackage, tmp_path: Path
) -> None:
    make_package().save(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    make_package(seed=1).save(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}


def test_the_package_can_be_read_by_others(make_package: MakePackage, tmp_path: Path) -> None:
    make_package().save(tmp_path / "out")
    (tmp_path / "usual").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_one_of_two_saves_to_a_folder_wins(make_package: MakePackage, tmp_path: Path) -> None:
    start = threading.Barrier(2)
    outcomes: list[object] = [None, None]

    def save(index: int) -> None:
        package = make_package(seed=index)
        start.wait()
        try:
            package.save(tmp_path / "out")
        except PackageSaveError as error:
            outcomes[index] = error

    threads = [threading.Thread(target=save, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcome is None for outcome in outcomes) == 1
    make_package(seed=outcomes.index(None)).save(tmp_path / "expected")
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "expected"}


def test_a_file_in_the_way_is_refused(make_package: MakePackage, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PackageSaveError, match=r"file is a file. Choose a folder"):
        make_package().save(tmp_path / "file", overwrite=True)
    with pytest.raises(PackageSaveError, match=r"file is a file, so .* cannot be made"):
        make_package().save(tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "x"


def test_a_folder_that_cannot_be_written_is_refused(
    make_package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic.os, "access", lambda path, mode: False)
    with pytest.raises(PackageSaveError, match=f"no permission to write in {tmp_path}"):
        make_package().save(tmp_path / "out")
    assert tree(tmp_path) == {}


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_refused(
    make_package: MakePackage, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(PackageSaveError, match="no permission to write in"):
        make_package().save(tmp_path / "closed" / "out")


def test_too_little_space_is_found_before_writing(
    make_package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2000, 1000, 1000))
    with pytest.raises(PackageSaveError, match=r"needs 0\.0 MB and its file system has 0\.0 MB"):
        make_package().save(tmp_path / "out")
    assert tree(tmp_path) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path: Path) -> None:
    # A limit on the size of files fails inside write(), as a full disk does.
    script = """
        import resource, signal, sys
        import numpy as np, onnx_ir as ir
        from mobius.package import ModelPackage
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        value = ir.Value(name="w", shape=ir.Shape([1 << 20]), type=ir.TensorType(ir.DataType.FLOAT))
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="g")
        graph.initializers["w"] = value
        models = {"model": ir.Model(graph, ir_version=10)}
        package = ModelPackage(models, roles={"model": "decoder"})
        package.apply_weights({"w": ir.tensor(np.ones(1 << 20, np.float32))})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            package.save(sys.argv[1])
        except OSError as error:
            print(type(error).__name__, error)
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.startswith(f"PackageSaveError Saving to {tmp_path / 'out'} failed: ")
    assert tree(tmp_path) == {}


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_ctrl_c_during_a_real_save_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import sys, time
        import numpy as np, onnx_ir as ir
        from mobius.package import ModelPackage
        def read():
            print("writing", flush=True)
            time.sleep(60)
        value = ir.Value(name="w", shape=ir.Shape([4]), type=ir.TensorType(ir.DataType.FLOAT))
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="g")
        graph.initializers["w"] = value
        models = {"model": ir.Model(graph, ir_version=10)}
        package = ModelPackage(models, roles={"model": "decoder"})
        package.apply_weights({"w": ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape([4]))})
        package.save(sys.argv[1])
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs, a CI among them, with the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    assert len(tree(tmp_path)) > 0
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in stderr
    assert tree(tmp_path) == {}


def test_a_package_is_not_saved_over_the_files_that_it_is_read_from(
    make_package: MakePackage, tmp_path: Path
) -> None:
    make_package().save(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(PackageSaveError, match="holds what this package is read from"):
        ModelPackage.load(tmp_path / "out").save(tmp_path / "out", overwrite=True)
    assert tree(tmp_path) == before


def test_a_package_is_not_saved_into_the_checkpoint(
    make_package: MakePackage, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").touch()
    (checkpoint / "mobius.json").touch()  # even if it looks like a package
    package = make_package().with_source(name=str(checkpoint), revision=None)
    before = tree(tmp_path)
    for target in (checkpoint, tmp_path):
        with pytest.raises(PackageSaveError, match="holds what this package is read from"):
            package.save(target, overwrite=True)
    assert tree(tmp_path) == before
    package.save(checkpoint / "onnx")
    assert (checkpoint / "model.safetensors").exists()


def test_everything_is_on_disk_before_it_is_moved(
    make_package: MakePackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def recorded_fsync(descriptor: int) -> None:
        events.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def recorded_rename(path: Path, target: Path) -> Path:
        events.append("rename")
        return rename(path, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see which file is synced")
    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(Path, "rename", recorded_rename)
    make_package().save(tmp_path / "out")
    moved = events.index("rename")
    assert {"sync model.onnx", "sync model.onnx.data", "sync mobius.json"} < set(events[:moved])
    assert events[moved + 1 :] == [f"sync {tmp_path.name}"]
