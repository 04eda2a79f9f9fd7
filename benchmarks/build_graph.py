"""How long a graph takes to build without weights, how the rewriter grows, what an import costs.

Run `python benchmarks/build_graph.py`; the results go to `benchmarks/results/build_graph.json`.

Each number is the best of several runs, in wall time and in CPU time of the process (all threads):
the best is what the work costs, the rest is what else the machine did meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from machine import describe, environment

import mobius
from mobius import ArchitectureConfig, tasks
from mobius.models import CausalLMModel
from mobius_components import MixtureConfig, RouterConfig

RESULTS = Path(__file__).resolve().parent / "results" / "build_graph.json"
LIBRARIES = ("onnx", "onnx-ir", "onnxscript", "numpy", "mobius-build")
LAYERS = (12, 24, 48, 96)

_QWEN25_7B = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "attention_bias": True,
}
_LLAMA31_70B = {
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 5e5,
}
_QWEN3_30B_A3B = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "qk_norm": "head",
    "moe": MixtureConfig(
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        router=RouterConfig(norm_topk_prob=True),
    ),
}
SHAPES: dict[str, dict[str, Any]] = {
    "7B, 28 layers (Qwen2.5-7B)": _QWEN25_7B,
    "70B, 80 layers (Llama-3.1-70B)": _LLAMA31_70B,
    "30B-A3B, 48 layers (Qwen3-30B-A3B)": _QWEN3_30B_A3B,
}
TARGETS = (("cuda", "bf16"), ("cpu", "f32"))


def build(shape: dict[str, Any], ep: str, dtype: str) -> mobius.ModelPackage:
    """Build the graph of a shape, without weights."""
    config = ArchitectureConfig(**shape)
    module = CausalLMModel(config)
    return mobius.build_from_module(module, config, execution_provider=ep, dtype=dtype)


def measure(work: Callable[[], object], repeat: int) -> dict[str, float]:
    """Run `work` several times and return seconds."""
    wall, cpu = [], []
    for _ in range(repeat):
        gc.collect()
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return _summary(wall, cpu)


def measure_import(statement: str, repeat: int) -> dict[str, float]:
    """Run a statement in new interpreters and return seconds, their start included."""
    wall, cpu = [], []
    command = [sys.executable, "-c", statement]
    subprocess.run(command, env=environment(), check=True)  # compiles
    for _ in range(repeat):
        before, start = _children(), time.perf_counter()
        subprocess.run(command, env=environment(), check=True)
        wall.append(time.perf_counter() - start)
        cpu.append(_children() - before)
    return _summary(wall, cpu)


def _children() -> float:
    """Return the CPU seconds of all child processes so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _summary(wall: list[float], cpu: list[float]) -> dict[str, float]:
    numbers = {
        "wall_best": min(wall),
        "wall_median": statistics.median(wall),
        "cpu_best": min(cpu),
        "cpu_median": statistics.median(cpu),
    }
    return {name: round(seconds, 4) for name, seconds in numbers.items()}


def builds(repeat: int) -> dict[str, Any]:
    """Measure every shape on every target."""
    found = {}
    for name, shape in SHAPES.items():
        for ep, dtype in TARGETS:
            report = build(shape, ep, dtype).reports["model"]
            numbers: dict[str, Any] = measure(lambda s=shape, e=ep, d=dtype: build(s, e, d), repeat)
            numbers["nodes"] = f"{report.nodes_before} -> {report.nodes_after}"
            found[f"{name}, {ep} {dtype}"] = numbers
    return found


def growth(repeat: int) -> dict[str, Any]:
    """Measure `optimize_model` alone against the number of layers, and fit a line."""
    measured = {layers: _optimize(layers, repeat) for layers in LAYERS}
    seconds = {layers: min(runs) for layers, runs in measured.items()}
    slope, intercept = np.polyfit(list(seconds), list(seconds.values()), 1)
    worst = max(abs(intercept + slope * x - y) / y for x, y in seconds.items())
    return {
        "cpu_best": {str(layers): round(value, 4) for layers, value in seconds.items()},
        "milliseconds_per_layer": round(1e3 * float(slope), 3),
        "milliseconds_per_layer_12_to_24": round(1e3 * (seconds[24] - seconds[12]) / 12, 3),
        "milliseconds_per_layer_48_to_96": round(1e3 * (seconds[96] - seconds[48]) / 48, 3),
        "largest_deviation_from_the_line": f"{worst:.1%}",
    }


def _optimize(layers: int, repeat: int) -> list[float]:
    """Return CPU seconds of optimising a graph of that many layers for cuda."""
    config = ArchitectureConfig(**{**_QWEN25_7B, "num_hidden_layers": layers})
    capabilities, dtype = mobius.get_ep("cuda"), ir.DataType.BFLOAT16
    seconds = []
    for _ in range(repeat):
        with mobius.build_context(capabilities, dtype):
            package = tasks.TASKS["text-generation"].build(CausalLMModel(config), config)
        gc.collect()
        start = time.process_time()
        mobius.optimize_model(package["model"], ep=capabilities, dtype=dtype)
        seconds.append(time.process_time() - start)
    return seconds


def imports(repeat: int) -> dict[str, Any]:
    """Measure the import of mobius beside that of what it is made of."""
    used = "from mobius import build"
    statements = ("pass", "import onnx_ir", "import onnxscript", "import mobius", used)
    return {statement: measure_import(statement, repeat) for statement in statements}


def main() -> None:
    """Measure everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=10, help="runs of which the best counts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    arguments = parser.parse_args()
    result = {
        **describe(LIBRARIES),
        "repeat": arguments.repeat,
        "build_without_weights": builds(arguments.repeat),
        "optimize_model_by_layers_cuda_bf16": growth(arguments.repeat),
        "import": imports(arguments.repeat),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
