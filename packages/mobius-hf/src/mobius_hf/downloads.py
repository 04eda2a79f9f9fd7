"""Several files of the hub at a time, and how far all of them are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mobius.sources import Progress

_AT_A_TIME = 8


class Downloads:
    """Adds up what the hub library says about each file.

    Args:
        progress: Called with bytes done, bytes in total of the files begun so far, and the name of
            the one that goes on; by one thread at a time.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._done = self._total = 0

    def begun(self, size: int, done: int) -> None:
        """Note a file of `size` bytes, `done` of which were there."""
        with self._lock:
            self._total += size
            self._done += done

    def went_on(self, count: int, name: str) -> None:
        """Note `count` more bytes of a file."""
        with self._lock:
            self._done += count
            # A file whose size was not told when it began.
            self._total = max(self._total, self._done)
            self._progress(self._done, self._total, name)

    def bar(self) -> type[Any]:
        """Return a class of bars for the hub library, which draw nothing and tell here."""
        # The documented name; the library declares no exports to type checkers.
        from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

        downloads = self

        class Bar(tqdm):
            """Tells instead of drawing."""

            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(  # type: ignore[no-untyped-call]
                    *arguments, **{**options, "disable": True}
                )
                # The end of its address.
                self._file = str(options.get("desc") or "").rpartition("/")[2]
                downloads.begun(int(options.get("total") or 0), int(options.get("initial") or 0))

            def update(self, n: float | None = 1) -> bool | None:
                downloads.went_on(int(n or 0), self._file)
                return None

        return Bar


def fetch(files: Sequence[str], path: Callable[[str], Path]) -> dict[str, Path]:
    """Return the path of each file, several fetched at a time.

    Args:
        files: Their names.
        path: Fetches one and returns where it is.

    Raises:
        Exception: the first that `path` raises, in the order of `files`; no further file is begun.
    """
    with ThreadPoolExecutor(_AT_A_TIME, "mobius-download") as pool:
        futures = {file: pool.submit(path, file) for file in files}
        try:
            return {file: future.result() for file, future in futures.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
