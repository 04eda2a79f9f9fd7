"""`run_apart`: a function in a process of its own that starts quickly, with what it prints.

What most pages import is imported once, in the process that the others are forked from; nothing
that one of them changes is seen by another.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_CONTEXT = multiprocessing.get_context(_METHOD)
_PRELOADED = (
    "mobius.api",
    "mobius.cli",
    "mobius_hf.source",
    "mobius_hf.architectures.llama",
    # It imports torch where that is installed, which takes longest of all.
    "transformers.models.llama.configuration_llama",
)
_CONTEXT.set_forkserver_preload(list(_PRELOADED))


def run_apart(function: Callable[..., object], *arguments: object, cwd: Path) -> tuple[int, str]:
    """Call `function(*arguments)`, both picklable, in the folder `cwd`.

    Returns:
        The exit status, 1 for an exception, and what was written to stdout and stderr.
    """
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "output"
        process = _CONTEXT.Process(target=_call, args=(function, arguments, cwd, output))
        process.start()
        process.join()
        status = process.exitcode
        process.close()
        return 1 if status is None else status, output.read_text("utf-8")


def _call(
    function: Callable[..., object], arguments: tuple[object, ...], cwd: Path, output: Path
) -> None:
    with open(output, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(cwd)
    os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="100", NO_COLOR="1", TERM="dumb")
    warnings.simplefilter("error")
    try:
        function(*arguments)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
