"""Tokens a second of decoders on ONNX Runtime's CPU: a prompt, and then one token at a time.

Usage: python benchmarks/generate.py NAME=FOLDER ... [--lengths 128 1024] [--decode 32] [--rounds 5]

A folder is any package with a `model.onnx` from `input_ids` to `logits`, whose caches are called
`past_key_values...` going in and `present...` coming out: ours, or a peer's. Each is run as its
makers do: outputs are bound, and past and present are one buffer where its configuration says so.

Every round runs each folder once, in a process of its own, one after the other, so that a ratio
compares the same minute of the machine. Reported are medians over the rounds, and the ratio of each
to the first folder, round by round, with its spread: in wall time, and in CPU time, which is what
counts on a busy machine, with one thread (`--threads 1`).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from machine import describe

RESULT = Path(__file__).resolve().parent / "results" / "generate.json"
PAST = "past_key_values"
MEASURES = ("prefill", "decode", "prefill_cpu", "decode_cpu")
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
LIBRARIES = ("onnxruntime", "mobius-build")


class Runner:
    """A decoder of one row, with its cache in ONNX Runtime."""

    def __init__(self, folder: Path, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = ort.InferenceSession(
            folder / "model.onnx", options, providers=["CPUExecutionProvider"]
        )
        self.inputs = {port.name: port for port in self.session.get_inputs()}
        self.past = [name for name in self.inputs if name.startswith(PAST)]
        self.present = {name: name.replace(PAST, "present") for name in self.past}
        config = read_genai_config(folder)
        self.shared = bool(config) and config["search"]["past_present_share_buffer"]
        # Some exporters leave the width of a head open.
        self.head_size = config["model"]["decoder"]["head_size"] if config else None

    def start(self, capacity: int) -> None:
        """Forget the text; the next one has at most `capacity` tokens."""
        self.length = 0
        self.binding = self.session.io_binding()
        self.binding.bind_output("logits", "cpu")
        for name in self.past:
            port = self.inputs[name]
            length = capacity if self.shared else 0
            size = port.shape[3] if isinstance(port.shape[3], int) else self.head_size
            shape = (1, port.shape[1], length, size)
            value = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, TYPES[port.type]))
            self.binding.bind_ortvalue_input(name, value)
            if self.shared:
                self.binding.bind_ortvalue_output(self.present[name], value)
            else:
                self.binding.bind_output(self.present[name], "cpu")

    def step(self, tokens: Sequence[int]) -> tuple[float, float]:
        """Read `tokens`; return the seconds that passed, and those of CPU time."""
        begin, cpu = time.perf_counter(), time.process_time()
        total = self.length + len(tokens)
        feed = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(self.length, total, dtype=np.int64)[None],
        }
        for name, value in feed.items():
            if name in self.inputs:
                self.binding.bind_cpu_input(name, value)
        self.session.run_with_iobinding(self.binding)
        if not self.shared:
            _, *caches = self.binding.get_outputs()
            for name, value in zip(self.past, caches, strict=True):
                self.binding.bind_ortvalue_input(name, value)
                self.binding.bind_output(self.present[name], "cpu")
        self.binding.bind_output("logits", "cpu")
        self.length = total
        return time.perf_counter() - begin, time.process_time() - cpu


def read_genai_config(folder: Path) -> dict[str, Any]:
    """Return `genai_config.json` of a package, or nothing if it has none."""
    path = folder / "genai_config.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def run_once(folder: Path, length: int, decode: int, threads: int) -> dict[str, float]:
    """Return tokens a second of one prompt and of `decode` tokens after it."""
    runner = Runner(folder, threads)
    tokens = np.random.default_rng(3).integers(2, 250, length + decode).tolist()
    runner.start(length + decode)
    runner.step(tokens[:length])  # the first call allocates
    runner.start(length + decode)
    prefill, prefill_cpu = runner.step(tokens[:length])
    steps = [runner.step([token]) for token in tokens[length:]]
    wall, cpu = (statistics.median(each) for each in zip(*steps, strict=True))
    return {
        "prefill": length / prefill,
        "decode": 1 / wall,
        "prefill_cpu": length / prefill_cpu,
        "decode_cpu": 1 / cpu,
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def in_a_process(folder: Path, length: int, decode: int, threads: int) -> dict[str, float]:
    """Return what `run_once` does, from a new process."""
    command = [sys.executable, __file__, "--once", str(folder)]
    command += [str(length), str(decode), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{folder} does not run: {done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(
    folders: dict[str, Path], length: int, decode: int, rounds: int, threads: int
) -> dict[str, Any]:
    """Return for each folder medians, and ratios to the first folder of the same round."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in folders}
    for _ in range(rounds):
        for name, folder in folders.items():
            found[name].append(in_a_process(folder, length, decode, threads))
    first = next(iter(found.values()))
    return {
        name: {
            **medians(runs, MEASURES),
            **{
                f"{key}_ratio_to_first": spread(
                    [run[key] / base[key] for run, base in zip(runs, first, strict=True)]
                )
                for key in MEASURES
            },
        }
        for name, runs in found.items()
    }


def medians(runs: Sequence[dict[str, float]], measures: Sequence[str]) -> dict[str, float]:
    """Return tokens a second, and the largest memory."""
    return {
        **{
            f"{key}_tokens_per_second": round(statistics.median(run[key] for run in runs), 1)
            for key in measures
        },
        "peak_memory_MB": round(max(run["peak_memory"] for run in runs) / 1e6),
    }


def spread(ratios: Sequence[float]) -> list[float]:
    """Return median, lowest and highest."""
    return [round(each, 3) for each in (statistics.median(ratios), min(ratios), max(ratios))]


def main() -> None:
    if sys.argv[1:2] == ["--once"]:
        folder, *numbers = sys.argv[2:]
        print(json.dumps(run_once(Path(folder), *map(int, numbers))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="NAME=FOLDER", help="the first is ours")
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 1024])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    folders = {}
    for pair in arguments.folders:
        name, _, folder = pair.partition("=")
        folders[name] = Path(folder)
    result = describe(LIBRARIES)
    result["threads"], result["rounds"] = arguments.threads, arguments.rounds
    for length in arguments.lengths:
        result[f"prompt of {length}"] = measure(
            folders, length, arguments.decode, arguments.rounds, arguments.threads
        )
    print(json.dumps(result, indent=2))
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
