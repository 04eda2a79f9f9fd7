"""The same checkpoint built by Mobius and by its peers: time, memory, bytes, tokens a second.

Usage: python benchmarks/peers.py --peers FOLDER [--checkpoint FOLDER] [--scratch FOLDER]

FOLDER has a virtual environment for each peer, called `genai` (onnxruntime-genai's builder),
`optimum` (optimum-onnx) and `torch` (torch.onnx); a peer without one is left out. The checkpoint is
0.5 B random parameters in bf16, and is made where none is given (`checkpoint.py`).

Everything is compared side by side: in each round, ours and each peer build one after the other,
and so they run (`generate.py`). Ratios are ours to the peer's, so that below one is less time or
memory, and above one more tokens a second; each is the median, lowest and highest of the rounds.
Ours is built as the command builds it, with the last token's logits, and once more with all, as
peers' graphs have them.
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
from machine import describe, environment

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results" / "peers.json"
OURS = "mobius"
OURS_ALL = "mobius, all logits"
MEASURES = ("prefill", "decode")
LIBRARIES = ("mobius-build", "onnx", "onnx-ir", "onnxruntime", "onnxscript")
IMPORTS = (
    (OURS, None, "import mobius"),
    (OURS, None, "from mobius import build"),
    ("onnxscript", None, "import onnxscript"),
    ("onnxruntime-genai builder", "genai", "import onnxruntime_genai.models.builder"),
    ("optimum-onnx", "optimum", "from optimum.exporters.onnx import main_export"),
    ("torch.onnx", "torch", "import torch.onnx, transformers"),
)
"""Package, environment, and what its users import."""
_LARGE = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
GRAPHS: dict[str, dict[str, Any]] = {
    "7B, 28 layers (Qwen2.5-7B)": {
        **_LARGE,
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "70B, 80 layers (Llama-3.1-70B)": {
        **_LARGE,
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "30B-A3B, 48 layers (Qwen3-30B-A3B)": {
        **_LARGE,
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
}
"""Configurations that graphs are built of without weights."""
PEER_LIBRARIES = ("onnxruntime-genai", "optimum-onnx", "torch", "transformers")


def commands(peers: Path, source: Path, precision: str, out: Path) -> dict[str, list[str]]:
    """Return how each package is built: ours, and that of each peer that is installed."""
    ours = [sys.executable, "-m", "mobius", "build", str(source), str(out / OURS), "--ep", "cpu"]
    # As the peer's: one table for embedding and head.
    quantized = ["--quantize", "int4", "--quantize-embeddings"]
    ours += ["--dtype", "f32", *(quantized if precision == "int4" else [])]
    every = [*ours, "--all-logits"]
    every[every.index(str(out / OURS))] = str(out / OURS_ALL)
    found = {OURS: ours, OURS_ALL: every}
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


def compare_imports(peers: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds that each package takes to start, and to be imported."""
    found = {}
    for name, peer, statement in IMPORTS:
        python = peers / peer / "bin" / "python" if peer else Path(sys.executable)
        if python.exists():
            command = [str(python), "-c", statement]
            build(command, None)  # compiles
            runs = [build(command, None) for _ in range(rounds)]
            found[f"{name}: {statement}"] = {
                key: round(statistics.median(run[key] for run in runs), 2)
                for key in ("seconds", "cpu_seconds", "peak_memory_MB")
            }
    return found


def compare_graphs(peers: Path, scratch: Path) -> dict[str, dict[str, Any]]:
    """Return what it takes to build a graph without weights, everything from start to end."""
    found: dict[str, dict[str, Any]] = {}
    torch = peers / "torch" / "bin" / "python"
    for name, config in GRAPHS.items():
        folder = scratch / "config"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
        out = scratch / "graph"
        ours = [sys.executable, "-m", "mobius", "build", str(folder), str(out), "--no-weights"]
        commands = {OURS: [*ours, "--ep", "cpu", "--dtype", "f32"]}
        if torch.exists():
            script = str(HERE / "peer_torch.py")
            commands["torch.onnx"] = [str(torch), script, str(folder), str(out), "--no-weights"]
        found[name] = {}
        for builder, command in commands.items():
            try:
                measured = build(command, out)
            except RuntimeError as error:  # the peer's answer, which is a result too
                if builder == OURS:
                    raise
                lines = [line for line in str(error).splitlines() if "Error" in line]
                found[name][builder] = {"fails": lines[-1][:160] if lines else str(error)[-160:]}
                continue
            found[name][builder] = {
                key: round(measured[key], 2) for key in ("seconds", "cpu_seconds", "peak_memory_MB")
            }
    return found


def build(command: Sequence[str], out: Path | None) -> dict[str, float]:
    """Run `command`, which may write the folder `out`; return seconds, peak memory and bytes."""
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment())
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
        "bytes_MB": 0.0
        if out is None
        else sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) / 1e6,
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
                **generate.medians(measured, MEASURES),
                **{
                    f"{key}_ours_to_it": generate.spread(
                        [a[key] / b[key] for a, b in zip(runs[OURS], measured, strict=True)]
                    )
                    for key in MEASURES
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
        for key, compare in (
            ("import", lambda: compare_imports(arguments.peers, arguments.builds)),
            ("without weights", lambda: compare_graphs(arguments.peers, scratch)),
        ):
            result[key] = reused[key] if key in reused else compare()
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
