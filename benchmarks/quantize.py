"""What quantizing while saving costs beside a plain save: seconds, CPU seconds, memory, bytes.

Usage: python benchmarks/quantize.py [--gigabytes 1] [--repeats 3] [--scratch FOLDER]

Makes a bf16 checkpoint of that size (see save.py) and saves it as it is and in integers, for a
target that keeps bf16 and for one that has float32 otherwise. Each save runs in a process of its
own, in turns, after the checkpoint's pages were dropped from the cache, and ends with an fsync; the
shortest times count. Memory is the process's peak above what it had after the graph was built.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from machine import describe
from save import forget, memory, write_checkpoint

RESULT = Path(__file__).resolve().parent / "results" / "quantize.json"
LIBRARIES = ("mobius-build", "numpy", "onnx-ir")


class Case(NamedTuple):
    """One way to save.

    Attributes:
        ep: Execution provider.
        dtype: Of the package.
        quantize: Arguments of `QuantizationConfig`; `None` for a plain save.
    """

    ep: str
    dtype: str
    quantize: dict[str, Any] | None = None


PLAIN = {"bf16": Case("cuda", "bf16"), "f16": Case("cuda", "f16"), "f32": Case("cpu", "f32")}
CASES = {
    "bf16, int4": Case("cuda", "bf16", {}),
    "bf16, int4, asymmetric": Case("cuda", "bf16", {"symmetric": False}),
    "bf16, int8": Case("cuda", "bf16", {"bits": 8}),
    "bf16, int4, blocks of 128, embeddings": Case(
        "cuda", "bf16", {"block_size": 128, "embeddings": True}
    ),
    "f16, int4": Case("cuda", "f16", {}),
    "f32, int4": Case("cpu", "f32", {}),
    "f32, int4, without MatMulNBits": Case("onnx-standard", "f32", {}),
}


def save_once(case: Case, checkpoint: Path, out: Path) -> dict[str, float]:
    """Build and save here; return what the save took."""
    import mobius

    quantize = None if case.quantize is None else mobius.QuantizationConfig(**case.quantize)
    package = mobius.build(
        checkpoint, execution_provider=case.ep, dtype=case.dtype, quantize=quantize
    )
    before = memory("VmHWM")
    start, start_cpu = time.perf_counter(), time.process_time()
    package.save(out)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - start_cpu,
        "memory": memory("VmHWM") - before,
    }


def measured(name: str, checkpoint: Path, scratch: Path) -> dict[str, float]:
    """Save in a process of its own and return what it took, and the bytes."""
    out = scratch / "package"
    forget(checkpoint / "model.safetensors")
    command = [sys.executable, str(Path(__file__).resolve()), "--save", name, checkpoint, out]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    result["bytes"] = sum(path.stat().st_size for path in out.iterdir())
    shutil.rmtree(out)
    return result


def best(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "seconds": round(min(run["seconds"] for run in runs), 3),
        "cpu_seconds": round(min(run["cpu_seconds"] for run in runs), 3),
        "memory": max(int(run["memory"]) for run in runs),
        "bytes": int(runs[0]["bytes"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="[default: the system's temporary folder]")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--save", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    every = {**PLAIN, **CASES}
    if arguments.save:
        name, checkpoint, out = arguments.save
        print(json.dumps(save_once(every[name], Path(checkpoint), Path(out))))
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in every}
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        largest = write_checkpoint(checkpoint, arguments.gigabytes)
        for _ in range(arguments.repeats):
            for name, found in runs.items():
                found.append(measured(name, checkpoint, Path(scratch)))
    results = {name: best(found) for name, found in runs.items()}
    for name, case in CASES.items():
        plain, ours = results[case.dtype], results[name]
        ours["times_a_plain_save"] = round(ours["seconds"] / plain["seconds"], 2)
        ours["cpu_times_a_plain_save"] = round(ours["cpu_seconds"] / plain["cpu_seconds"], 2)
        print(f"{name}: {json.dumps(ours)}")
    report = {
        **describe(LIBRARIES),
        "gigabytes": arguments.gigabytes,
        "largest_tensor": largest,
        "plain": {name: results[name] for name in PLAIN},
        "quantized": {name: results[name] for name in CASES},
    }
    arguments.result.parent.mkdir(parents=True, exist_ok=True)
    arguments.result.write_text(json.dumps(report, indent=2) + "\n", "utf-8", newline="\n")


if __name__ == "__main__":
    main()
