"""What saving costs beside a plain copy of the same bytes: seconds, and memory above the imports.

Usage: python benchmarks/save.py [--gigabytes 1] [--repeats 3] [--scratch FOLDER] [--result FILE]

Makes a bf16 checkpoint of that size in the scratch folder (it needs five times the size there), and
saves it in several ways. Each save and each copy runs in a process of its own, one after the other,
after the checkpoint's pages were dropped from the cache; both end with an fsync, and the shortest
time counts. Memory is the process's peak (VmHWM) above what it had after the imports (VmRSS).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from machine import cpu_name

RESULT = Path(__file__).resolve().parent / "results" / "save.json"
HIDDEN, INTERMEDIATE, VOCAB, HEADS, KV_HEADS = 2048, 8192, 32000, 16, 4


class Case(NamedTuple):
    """One way to save.

    Attributes:
        ep: Execution provider.
        dtype: Of the package.
        weights: Argument of `save`.
        in_place: Save into the checkpoint's own folder.
    """

    ep: str
    dtype: str
    weights: str = "copy"
    in_place: bool = False


CASES = {
    "own dtype, query, key and value packed": Case("cuda", "bf16"),
    "own dtype, matrices transposed": Case("default", "bf16"),
    "cast to f16, packed": Case("cuda", "f16"),
    "cast to f16, transposed": Case("default", "f16"),
    "cast to f32": Case("default", "f32"),
    "reference, files copied": Case("cuda", "bf16", "reference"),
    "reference, in place": Case("cuda", "bf16", "reference", in_place=True),
}


def write_checkpoint(folder: Path, gigabytes: float) -> int:
    """Write a llama of about that size in bf16 and return the bytes of its largest tensor."""
    per_layer = 2 * HIDDEN * (HIDDEN + HIDDEN * KV_HEADS // HEADS) + 3 * HIDDEN * INTERMEDIATE
    layers = max(1, round((gigabytes * 1e9 / 2 - 2 * VOCAB * HIDDEN) / per_layer))
    keys = HIDDEN * KV_HEADS // HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(layers):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (HIDDEN,),
                "self_attn.q_proj": (HIDDEN, HIDDEN),
                "self_attn.k_proj": (keys, HIDDEN),
                "self_attn.v_proj": (keys, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HIDDEN),
                "post_attention_layernorm": (HIDDEN,),
                "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
                "mlp.up_proj": (INTERMEDIATE, HIDDEN),
                "mlp.down_proj": (HIDDEN, INTERMEDIATE),
            }.items()
        }
    shapes |= {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            values = generator.standard_normal(shape, np.float32) * 0.02
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())
        file.flush()
        os.fsync(file.fileno())
    return max(2 * int(np.prod(shape)) for shape in shapes.values())


def save_once(case: Case, checkpoint: Path, out: Path) -> dict[str, float]:
    """Build and save here; return seconds of the save and bytes of memory above the imports."""
    from transformers import CONFIG_MAPPING

    import mobius
    import mobius_hf.source  # noqa: F401  (what `build` imports)

    CONFIG_MAPPING["llama"]  # imports it
    before = memory("VmRSS")
    package = mobius.build(checkpoint, execution_provider=case.ep, dtype=case.dtype)
    built = memory("VmHWM")
    start, used = time.perf_counter(), time.process_time()
    package.save(out, weights=case.weights)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    return {
        "seconds": seconds,
        "cpu_seconds": used,
        "graph_memory": built - before,
        "memory": memory("VmHWM") - before,
    }


def copy_once(source: Path, out: Path) -> dict[str, float]:
    """Copy a file as `cp` does and wait for the disk; return the seconds."""
    start, used = time.perf_counter(), time.process_time()
    out.parent.mkdir()
    shutil.copyfile(source, out)
    with open(out, "rb+") as file:
        os.fsync(file.fileno())
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - used,
    }


def memory(field: str) -> int:
    """Return a field of this process's status in bytes."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def in_own_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def measure(name: str, checkpoint: Path, scratch: Path, repeats: int) -> dict[str, Any]:
    """Save and copy the same number of bytes, in turns; return the shortest times."""
    case, weights = CASES[name], checkpoint / "model.safetensors"
    saves, copies, size = [], [], 0
    out = checkpoint if case.in_place else scratch / "package"
    for _ in range(repeats):
        forget(weights)
        saves.append(in_own_process("--save", name, str(checkpoint), str(out)))
        written = [path for path in out.iterdir() if path.name != "config.json"]
        size = sum(path.stat().st_size for path in written if path != weights)
        # The same bytes; of a package that only refers to them, the file referred to.
        source = scratch / "same-bytes"
        shutil.copyfile(weights if case.in_place else max(written, key=_size), source)
        if case.in_place:
            for path in written:
                if path != weights:
                    path.unlink()
        else:
            shutil.rmtree(out)
        with open(source, "rb+") as file:
            os.fsync(file.fileno())
        forget(source)
        copies.append(in_own_process("--copy", str(source), str(scratch / "copy" / "file")))
        shutil.rmtree(scratch / "copy")
        source.unlink()
    measured = {
        f"{field}{of}": round(min(each[field] for each in runs), 3)
        for field in ("seconds", "cpu_seconds")
        for of, runs in (("", saves), ("_of_a_copy", copies))
    }
    return {
        **case._asdict(),
        "bytes_written": size,
        **measured,
        "times_a_copy": round(measured["seconds"] / measured["seconds_of_a_copy"], 3),
        "graph_memory": max(int(each["graph_memory"]) for each in saves),
        "memory": max(int(each["memory"]) for each in saves),
    }


def _size(path: Path) -> int:
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="[default: the system's temporary folder]")
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--only", choices=CASES, action="append", help="may be given again")
    parser.add_argument("--save", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--copy", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.save:
        name, checkpoint, out = arguments.save
        print(json.dumps(save_once(CASES[name], Path(checkpoint), Path(out))))
        return
    if arguments.copy:
        print(json.dumps(copy_once(*map(Path, arguments.copy))))
        return
    cases = {}
    load = round(os.getloadavg()[0], 1)  # of others: what the numbers are worth
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        checkpoint = Path(scratch) / "checkpoint"
        largest = write_checkpoint(checkpoint, arguments.gigabytes)
        size = (checkpoint / "model.safetensors").stat().st_size
        for name in arguments.only or CASES:
            cases[name] = measure(name, checkpoint, Path(scratch), arguments.repeats)
            cases[name]["times_the_largest_tensor"] = round(cases[name]["memory"] / largest, 2)
            print(name, json.dumps(cases[name]), flush=True)
    report = json.loads(arguments.result.read_text("utf-8")) if arguments.result.exists() else {}
    report[f"{arguments.gigabytes:g} GB"] = {
        "date": datetime.date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_at_start": load,
        "python": platform.python_version(),
        "cache": "checkpoint dropped from the page cache before each save",
        "bytes": size,
        "largest_tensor": largest,
        "cases": cases,
    }
    arguments.result.parent.mkdir(parents=True, exist_ok=True)
    arguments.result.write_text(json.dumps(report, indent=2) + "\n", "utf-8", newline="\n")


if __name__ == "__main__":
    main()
