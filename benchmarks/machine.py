"""What a result was measured on and with: kind of CPU, its load, versions of the libraries."""

from __future__ import annotations

import atexit
import datetime
import functools
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def describe(libraries: Iterable[str]) -> dict[str, Any]:
    """Return date, kind of machine, load of the last minute, and versions of `libraries`."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_of_the_last_minute": round(os.getloadavg()[0], 1),
        },
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in libraries},
    }


def cpu_name() -> str:
    """Return the kind of CPU."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


@functools.cache
def environment() -> dict[str, str]:
    """Return the variables for other interpreters, which keep what they compile from run to run.

    As an installed package does; sources that are edited in place may be told not to.
    """
    folder = tempfile.mkdtemp(prefix="bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": folder, "HF_HUB_OFFLINE": "1"}
