"""The same checkpoint built by Mobius and by its peers: time, memory, bytes, tokens a second.

Usage: python benchmarks/peers.py --peers FOLDER [--checkpoint FOLDER] [--scratch FOLDER]

FOLDER has a virtual environment for each peer, called `genai` (onnxruntime-genai's builder),
`optimum` (optimum-onnx) and `torch` (torch.onnx); a peer without one is left out. The checkpoint is
0.5 B random parameters in bf16, and is made where none is given (`checkpoint.py`).

Everything is compared side by side: in each round, ours and each peer build one after the other,
and so they run (`generate.py`). Ratios are ours to the peer's, so that below one is less time or
memory, and above one more tokens a second; each is the median, lowest and highest of the rounds.
Ours is built once with all logits, as peers' graphs have them, and once with the last token's only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import generate
from machine import describe

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "peers.json"
OURS = "mobius"
OURS_LAST = "mobius-last-token"
LIBRARIES = ("mobius-build", "onnx", "onnx-ir", "onnxruntime", "onnxscript")
PEER_LIBRARIES = ("onnxruntime-genai", "optimum-onnx", "torch", "transformers")


def commands(peers: Path, source: Path, precision: str, out: Path) -> dict[str, list[str]]:
    """Return how each package is built: ours, and that of each peer that is installed."""
    ours = [sys.executable, "-m", "mobius", "build", str(source), str(out / OURS), "--ep", "cpu"]
    # As the peer's: one table for embedding and head.
    quantized = ["--quantize", "int4", "--quantize-embeddings"]
    ours += ["--dtype", "f32", *(quantized if precision == "int4" else [])]
    last = [*ours, "--last-token-logits"]
    last[last.index(str(out / OURS))] = str(out / OURS_LAST)
    found = {OURS: [*ours, "--all-logits"], OURS_LAST: last}
    genai = peers / "genai" / "bin" / "python"
    if genai.exists():
        name = "onnxruntime-genai builder"
        found[name] = [str(genai), "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
        found[name] += ["-o", str(out / name), "-c", str(out / "cache"), "-e", "cpu"]
        found[name] += ["-p", "int4" if precision == "int4" else "fp32"]
    if precision == "int4":
        return found
    optimum = peers / "optimum" / "bin" / "python"
    if optimum.exists():
        name = "optimum-onnx"
        found[name] = [str(optimum), str(optimum.parent / "optimum-cli"), "export", "onnx"]
        found[name] += ["-m", str(source), str(out / name), "--task", "text-generation-with-past"]
    torch = peers / "torch" / "bin" / "python"
    if torch.exists():
        name = "torch.onnx"
        found[name] = [str(torch), str(HERE / "peer_torch.py"), str(source), str(out / name)]
    return found


def build(command: Sequence[str], out: Path) -> dict[str, float]:
    """Run `command`, which writes the folder `out`; return seconds, peak memory and bytes."""
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {log.read()[-2000:].decode()}")
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_MB": usage.ru_maxrss * 1024 / 1e6,
        "bytes_MB": sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) / 1e6,
    }


def compare_builds(
    found: Mapping[str, Sequence[str]], out: Path, rounds: int
) -> dict[str, dict[str, Any]]:
    """Return medians of each build, and ratios of ours to it."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, command in found.items():
            runs[name].append(build(command, out / name))
    return {
        name: {
            **{key: round(statistics.median(r[key] for r in measured), 2) for key in measured[0]},
            **{
                f"{key}_ours_to_it": generate.spread(
                    [ours[key] / run[key] for ours, run in zip(runs[OURS], measured, strict=True)]
                )
                for key in ("seconds", "peak_memory_MB")
            },
        }
        for name, measured in runs.items()
    }


def compare_speed(
    names: Sequence[str], out: Path, lengths: Sequence[int], rounds: int, threads: int
) -> dict[str, Any]:
    """Return tokens a second of each package, and ratios of ours to it, for each prompt length."""
    folders = {name: out / name for name in names}
    result = {}
    for length in lengths:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name, folder in folders.items():
                runs[name].append(generate.in_a_process(folder, length, 32, threads))
        result[f"prompt of {length}"] = {
            name: {
                **generate.medians(measured),
                **{
                    f"{key}_{ours}_to_it": generate.spread(
                        [a[key] / b[key] for a, b in zip(runs[ours], measured, strict=True)]
                    )
                    for key in generate.MEASURES
                    for ours in (OURS, OURS_LAST)
                },
            }
            for name, measured in runs.items()
        }
    return result


def versions(peers: Path) -> dict[str, dict[str, str]]:
    """Return the versions of the libraries in each peer's environment."""
    script = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    found = {}
    for name in ("genai", "optimum", "torch"):
        python = peers / name / "bin" / "python"
        if python.exists():
            command = [str(python), "-c", script, *PEER_LIBRARIES]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def scratch_folder(given: Path | None) -> Iterator[Path]:
    """Yield a folder for packages: the one that is given, or one that is removed afterwards."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, required=True, help="folder of environments")
    parser.add_argument("--checkpoint", type=Path, help="a checkpoint; one is made otherwise")
    parser.add_argument("--scratch", type=Path, help="folder for packages, which needs 12 GB")
    parser.add_argument("--precisions", nargs="+", default=["f32", "int4"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 1024])
    parser.add_argument("--builds", type=int, default=3, help="rounds of builds")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument(
        "--reuse", action="store_true", help="what OUTPUT says of builds, and SCRATCH has of them"
    )
    arguments = parser.parse_args()
    reused = json.loads(arguments.output.read_text("utf-8")) if arguments.reuse else {}
    result: dict[str, Any] = {**describe(LIBRARIES), "threads": arguments.threads}
    result["peers"] = versions(arguments.peers)
    with scratch_folder(arguments.scratch) as scratch:
        source = arguments.checkpoint
        if source is None:
            source = scratch / "checkpoint"
            # In a process of its own: Linux counts the memory of a parent for its children.
            subprocess.run([sys.executable, str(HERE / "checkpoint.py"), str(source)], check=True)
        for precision in arguments.precisions:
            out = scratch / precision
            found = commands(arguments.peers, source, precision, out)
            builds = reused.get(precision, {}).get("build")
            if builds is None:
                builds = compare_builds(found, out, arguments.builds)
            result[precision] = {"build": builds}
            arguments.output.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
            result[precision] |= compare_speed(
                list(found), out, arguments.lengths, arguments.rounds, arguments.threads
            )
            arguments.output.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
