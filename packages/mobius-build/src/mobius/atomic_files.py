"""Write a file and the files that it refers to, all of them or none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from mobius.atomic import as_save_error, hidden_sibling, sync, sync_tree
from mobius.errors import PackageSaveError

__all__ = ["atomic_files", "check_file", "check_files"]


def check_file(target: Path, *, overwrite: bool) -> None:
    """Refuse a file that cannot be written, or that is there and must be kept.

    Raises:
        PackageSaveError: saying what is in the way and what to do.
    """
    folder = target.parent
    if target.is_dir():
        raise PackageSaveError(f"{target} is a folder. Give the name of a file.")
    if not folder.is_dir():
        raise PackageSaveError(f"The folder {folder} does not exist. Make it, or choose another.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PackageSaveError(
            f"{target} cannot be written: no permission to write in {folder}. Change its "
            "permissions or choose another folder."
        )
    if not overwrite and (target.exists() or target.is_symlink()):
        raise PackageSaveError(
            f"{target} exists. Choose another name, or overwrite it (overwrite=True, --overwrite "
            "on the command line)."
        )


def check_files(folder: Path, names: Iterable[str], *, overwrite: bool, marker: str) -> None:
    """Refuse files that cannot be written into `folder`, or that are there and must be kept.

    Args:
        folder: An existing folder.
        names: What will be written.
        overwrite: Allow those that are there to be replaced.
        marker: File that is there where they are of our making, and may be.

    Raises:
        PackageSaveError: saying what is in the way and what to do.
    """
    for name in names:
        check_file(folder / name, overwrite=overwrite)
        if (folder / name).exists() and not (folder / marker).is_file():
            raise PackageSaveError(
                f"{folder} has a {name} but no {marker}, so it is not of a package and is not "
                "overwritten. Choose another folder, or remove it yourself."
            )


@contextlib.contextmanager
def atomic_files(target: Path, *, stale: Collection[str] = ()) -> Iterator[Path]:
    """Yield a new folder; the files made in it are moved beside `target` when the block ends.

    One of them must have the name of `target`. Those that are there are replaced: `target` goes
    first and comes last, so that it never refers to a file that is not its own. On any error or
    interruption, what existed is as before.

    Args:
        target: The file that refers to the others.
        stale: Names of files that go when `target` is replaced, if no others take their place.

    Raises:
        PackageSaveError: for every `OSError` in the block or while moving files.
    """
    folder = target.parent
    with (
        as_save_error(target),
        contextlib.ExitStack() as always,  # once more where removing something is interrupted
        contextlib.ExitStack() as undo,
    ):
        staging = hidden_sibling(target, "tmp")
        always.callback(shutil.rmtree, staging, ignore_errors=True)
        staging.mkdir()
        yield staging
        sync_tree(staging)
        names = sorted((path.name for path in staging.iterdir()), key=lambda n: n == target.name)
        aside = staging / "replaced"
        aside.mkdir()
        replaced = target.exists() or target.is_symlink()
        others = sorted(set(stale).difference(names)) if replaced else []
        for name in (*reversed(names), *others):
            if (folder / name).exists() or (folder / name).is_symlink():
                # Before it is moved: an interruption may come between the two.
                undo.callback(_move_back, aside / name, folder / name)
                (folder / name).rename(aside / name)
        for name in names:
            undo.callback((folder / name).unlink, missing_ok=True)
            (staging / name).rename(folder / name)
        sync(folder)
        undo.pop_all()
        shutil.rmtree(staging, ignore_errors=True)


def _move_back(aside: Path, place: Path) -> None:
    if aside.exists() or aside.is_symlink():
        aside.rename(place)
