"""Write a folder completely or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from mobius.errors import PackageSaveError

__all__ = [
    "as_save_error",
    "atomic_directory",
    "check_destination",
    "check_free_space",
    "hidden_sibling",
    "sync",
    "sync_tree",
]

_logger = logging.getLogger(__name__)


def check_destination(target: Path, *, overwrite: bool, marker: str) -> None:
    """Refuse a `target` that cannot be written, or that holds something to be kept.

    Args:
        target: The folder that will be written.
        overwrite: Allow an existing folder to be replaced.
        marker: File that an existing folder must hold to be replaceable, which protects a folder
            that is not of our making.

    Raises:
        PackageSaveError: saying what is in the way and what to do.
    """
    if target.exists() and not target.is_dir():
        raise PackageSaveError(f"{target} is a file. Choose a folder to save the package in.")
    with as_save_error(target):
        existing = target if target.exists() else next(p for p in target.parents if p.exists())
        occupied = target.exists() and any(target.iterdir())
    if not existing.is_dir():
        raise PackageSaveError(
            f"{existing} is a file, so {target} cannot be made. Choose another folder."
        )
    writable = existing.parent if occupied else existing
    if not os.access(writable, os.W_OK | os.X_OK):
        raise PackageSaveError(
            f"{target} cannot be written: no permission to write in {writable}. Change its "
            "permissions or choose another folder."
        )
    if not occupied:
        return
    if not (target / marker).is_file():
        raise PackageSaveError(
            f"{target} is not empty and has no {marker}, so it is not a package and is not "
            "overwritten. Choose another folder, or empty it yourself."
        )
    if not overwrite:
        raise PackageSaveError(
            f"{target} is not empty. Choose another folder, or overwrite it (overwrite=True, "
            "--overwrite on the command line)."
        )
    if target.resolve() == Path.cwd():
        raise PackageSaveError(
            f"{target} is the current folder and cannot be replaced. Run from another folder."
        )


def check_free_space(target: Path, needed: int) -> None:
    """Refuse to start when the file system of `target` has less than `needed` bytes free."""
    existing = next(path for path in (target, *target.parents) if path.exists())
    with as_save_error(target):
        free = shutil.disk_usage(existing).free
    if free < needed:
        raise PackageSaveError(
            f"{target} needs {needed / 1e6:.1f} MB and its file system has {free / 1e6:.1f} MB "
            "free. Free some space or choose another disk."
        )


@contextlib.contextmanager
def atomic_directory(target: Path, *, overwrite: bool, last: str) -> Iterator[Path]:
    """Yield a new folder whose content becomes `target` when the block ends without an error.

    The new folder lies beside `target` and is renamed into place after everything is on disk; a
    folder that was there is moved aside first and removed last. An *empty* `target` (it may be a
    mount point, or the folder that a shell is in) stays the folder that it is: the files are
    written into a hidden folder inside and moved up, the one called `last` at the end. On any
    error or interruption, what existed is as before.

    Args:
        target: The folder; `check_destination` has accepted it.
        overwrite: Replace a folder that is there by the time that the files are written.
        last: File whose presence says that the folder is complete.

    Raises:
        PackageSaveError: for every `OSError` in the block or while moving files.
    """
    with (
        as_save_error(target),
        contextlib.ExitStack() as undo,
        contextlib.ExitStack() as always,  # once more where removing something is interrupted
    ):
        inside = target.is_dir() and not any(target.iterdir())
        if not inside:
            _make_parents(target.parent, undo)
        staging = hidden_sibling(target / target.name if inside else target, "tmp")
        always.callback(shutil.rmtree, staging, ignore_errors=True)
        staging.mkdir()
        yield staging
        sync_tree(staging)
        if inside:
            _move_up(staging, target, last, undo)
        else:
            _replace(staging, target, always, overwrite=overwrite)
        undo.pop_all()
        shutil.rmtree(staging, ignore_errors=True)
        sync(target if inside else target.parent)


@contextlib.contextmanager
def as_save_error(target: Path) -> Iterator[None]:
    """Raise every `OSError` of the block as a `PackageSaveError` about `target`."""
    try:
        yield
    except PackageSaveError:
        raise
    except OSError as error:
        raise PackageSaveError(
            f"Saving to {target} failed: {error}. Nothing that existed was changed. Free some "
            "space, check the permissions, or choose another folder."
        ) from error


def _make_parents(folder: Path, undo: contextlib.ExitStack) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        undo.callback(_remove_if_empty, path)
        path.mkdir(exist_ok=True)


def _remove_if_empty(folder: Path) -> None:
    # Another thread may have put its own package there in the meantime.
    with contextlib.suppress(OSError):
        folder.rmdir()


def hidden_sibling(path: Path, kind: str) -> Path:
    """Return a hidden name beside `path` that no one else has, for a folder to be made.

    Whoever makes it sees to its removal first: an interruption may come between the two.
    """
    # Not tempfile.mkdtemp, whose folders only their owner can read.
    return path.with_name(f".{path.name}.{kind}-{secrets.token_hex(4)}")


def _replace(staging: Path, target: Path, always: contextlib.ExitStack, *, overwrite: bool) -> None:
    if not overwrite or not target.exists():
        staging.rename(target)  # fails if someone else has put a package there in the meantime
        return
    shutil.copymode(target, staging)
    aside = hidden_sibling(target, "old")
    always.callback(_settle, aside, target)
    aside.mkdir()
    try:
        target.rename(aside / target.name)
        staging.rename(target)
    finally:
        _settle(aside, target)
    if aside.exists():
        # Windows keeps files that someone has mapped; the new package is complete all the same.
        _logger.warning("The replaced package could not be removed from %s", aside)


def _settle(aside: Path, target: Path) -> None:
    """Put the old package back if no other is in its place; remove it otherwise."""
    old = aside / target.name
    if old.exists() and not target.exists():
        old.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _move_up(staging: Path, target: Path, last: str, undo: contextlib.ExitStack) -> None:
    for entry in sorted(staging.iterdir(), key=lambda path: (path.name == last, path.name)):
        place = target / entry.name
        undo.callback(_remove, place)
        entry.rename(place)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """`sync` a folder and all that is in it."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(root, name))
        sync(Path(root))


def sync(path: Path) -> None:
    """Wait until the disk has `path`, so that a power cut cannot leave it half written."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder, and needs no sync of it
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
