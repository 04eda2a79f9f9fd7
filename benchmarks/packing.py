"""Whether one product and a Split beat several products of the same states on ONNX Runtime's CPU.

Usage: python benchmarks/packing.py [--layers 6] [--rounds 15]

Gate and up projection of a feed-forward layer (Qwen2.5-0.5B's shape), and query, key and value of
an attention whose queries and keys are normalised before they meet (Qwen3-0.6B's), each as separate
products and as one that is split, in float32 and as MatMulNBits of 4 bits. Each layer has weights
of its own, so that reading one token reads them from memory, as in a model. Rounds alternate; the
number is seconds of the separate products to those of the packed one, so above one packing is
faster: median, lowest and highest. CPU time of one thread is what counts on a busy machine; wall
time of two threads has what threads wait for each other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generate
import numpy as np
import onnx
import onnxruntime as ort
from machine import describe
from onnx import TensorProto, helper, numpy_helper

RESULT = Path(__file__).resolve().parent / "results" / "packing.json"
LIBRARIES = ("onnx", "onnxruntime")
BLOCK = 32
# Width of the states, and of each product.
SHAPES = {"gate and up": (896, (4864, 4864)), "query, key and value": (1024, (2048, 1024, 1024))}
TOKENS = (1, 128, 1024)


class Graph:
    """Layers of products, with random weights."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """Add a weight and return its name."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def product(self, x: str, width: int, inner: int, name: str) -> str:
        """Add the product of `x` with `inner` columns."""
        if self.precision == "f32":
            weight = self.random.standard_normal((width, inner), np.float32) * 0.02
            self.nodes.append(
                helper.make_node("MatMul", [x, self.weight(f"{name}.w", weight)], [name])
            )
            return name
        blocks = width // BLOCK
        bits = self.random.integers(0, 256, (inner, blocks, BLOCK // 2), np.uint8)
        scales = self.random.random((inner, blocks), np.float32) * 0.01
        inputs = [x, self.weight(f"{name}.w", bits), self.weight(f"{name}.s", scales)]
        options = {"K": width, "N": inner, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        self.nodes.append(
            helper.make_node("MatMulNBits", inputs, [name], domain="com.microsoft", **options)
        )
        return name

    def layer(self, x: str, width: int, sizes: tuple[int, ...], packed: bool, name: str) -> str:
        """Add the products of `x` and what brings them back to its width."""
        parts = [f"{name}.{index}" for index in range(len(sizes))]
        if packed:
            whole = self.product(x, width, sum(sizes), f"{name}.whole")
            split = self.weight(f"{name}.sizes", np.array(sizes, np.int64))
            self.nodes.append(helper.make_node("Split", [whole, split], parts, axis=-1))
        else:
            for part, size in zip(parts, sizes, strict=True):
                self.product(x, width, size, part)
        ends = [f"{part}.end" for part in parts]
        axes = self.weight(f"{name}.axes", np.array([2], np.int64))
        for part, end in zip(parts, ends, strict=True):
            self.nodes.append(helper.make_node("ReduceMax", [part, axes], [end], keepdims=1))
        self.nodes.append(helper.make_node("Sum", [x, *ends], [f"{name}.y"]))
        self.nodes.append(helper.make_node("Tanh", [f"{name}.y"], [f"{name}.z"]))
        return f"{name}.z"


def session(precision: str, shape: str, packed: bool, layers: int, threads: int) -> Any:
    """Return a session of `layers` layers."""
    width, sizes = SHAPES[shape]
    graph, x = Graph(precision), "x"
    for layer in range(layers):
        x = graph.layer(x, width, sizes, packed, f"l{layer}")
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "S", width]) for name in ("x", x)
    ]
    made = helper.make_graph(graph.nodes, "g", ports[:1], ports[1:], graph.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def ratios(
    precision: str, shape: str, layers: int, rounds: int, threads: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Return separate to packed, for each number of tokens."""
    pair = [session(precision, shape, packed, layers, threads) for packed in (False, True)]
    width, _ = SHAPES[shape]
    result = {}
    for tokens in TOKENS:
        feed = {
            "x": np.random.default_rng(1).standard_normal((1, tokens, width)).astype(np.float32)
        }
        found: list[list[float]] = [[], []]
        for turn in range(1 + max(2, rounds * 8 // (tokens + 7))):
            for each, times in zip(pair, found, strict=True):
                begin = clock()
                each.run(None, feed)
                if turn:  # the first call allocates
                    times.append(clock() - begin)
        pairs = zip(*found, strict=True)
        result[f"{tokens} tokens"] = generate.spread([apart / one for apart, one in pairs])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of one token")
    parser.add_argument("--wall", action="store_true", help="wall time of two threads, too")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()
    result: dict[str, Any] = describe(LIBRARIES)
    clocks = {
        "CPU time, 1 thread": (1, time.process_time),
        "wall, 2 threads": (2, time.perf_counter),
    }
    for title, (threads, clock) in list(clocks.items())[: 1 + arguments.wall]:
        result[title] = {
            f"{shape}, {precision}": ratios(
                precision, shape, arguments.layers, arguments.rounds, threads, clock
            )
            for shape, precision in itertools.product(SHAPES, ("f32", "int4"))
        }
    print(json.dumps(result, indent=2))
    arguments.output.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
