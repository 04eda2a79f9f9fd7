"""MatMulNBitsToDequantize: the numbers of the kernel, from weights that stay quantized."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from mobius_ir_rules.lazy import weight_values
from mobius_ir_rules.lowering.mat_mul_n_bits import mat_mul_n_bits_to_dequantize_rules
from mobius_ir_rules.testing import RuleCase, RuleConformance, op_counts, run_model

KERNEL = "com.microsoft::MatMulNBits"
FOUND = "com.microsoft::MatMulNBits (node 'n')"
N = 10


def _model(
    bits: int = 4,
    depth: int = 64,
    block: int = 32,
    zero_points: str = "",
    bias: bool = False,
    dtype: ir.DataType = ir.DataType.FLOAT,
    calls: int = 1,
    given: bool = True,
    flat: bool = False,
    opset: int = 24,
    **attributes: Any,
) -> ir.Model:
    random = np.random.default_rng(0)
    blocks = -(-depth // block)
    arrays: dict[str, Any] = {
        "w": random.integers(0, 256, (N, blocks, block * bits // 8)).astype(np.uint8),
        "scales": (random.uniform(0.5, 1.5, (N, blocks)) / 2**bits).astype(dtype.numpy()),
    }
    if flat:
        arrays["scales"] = arrays["scales"].reshape(-1)
    if zero_points == "packed":
        arrays["z"] = random.integers(0, 256, (N, -(-blocks * bits // 8))).astype(np.uint8)
    elif zero_points:
        arrays["z"] = random.uniform(0.0, 8.0, (N, blocks)).astype(dtype.numpy())
    if bias:
        arrays["bias"] = random.standard_normal(N).astype(dtype.numpy())
    values = {
        name: ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        for name, array in arrays.items()
    }
    x = ir.val("x", dtype, ["B", 3, depth])
    inputs = [x, values["w"], values["scales"], values.get("z"), None, values.get("bias")]
    while inputs[-1] is None:
        inputs.pop()
    sizes = {"K": depth, "N": N, "bits": bits, "block_size": block, **attributes}
    nodes = [
        ir.node("MatMulNBits", inputs, sizes, domain="com.microsoft", name="nm"[index])
        for index in range(calls)
    ]
    for index, node in enumerate(nodes):
        node.outputs[0].name = f"y{index}"
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(dtype), ir.Shape(["B", 3, N])
    graph_inputs = [x] if given else [x, values["w"]]
    graph = ir.Graph(
        graph_inputs,
        [node.outputs[0] for node in nodes],
        nodes=nodes,
        initializers=list(values.values()),
        opset_imports={"": opset, "com.microsoft": 1},
        name="g",
    )
    return ir.Model(graph, ir_version=10)


AFTER = {KERNEL: 0, "DequantizeLinear": 1, "MatMul": 1, "Transpose": 1}
CASES = [
    *(
        RuleCase(
            f"{bits} bits, {depth} by {block}, zero points {zeros or 'left out'}, bias {bias}",
            # One name for each combination, so that closures keep theirs.
            lambda bits=bits, depth=depth, block=block, zeros=zeros, bias=bias: _model(  # type: ignore[misc]
                bits, depth, block, zeros, bias
            ),
            after={**AFTER, "Add": int(bias)},
            dims={"B": 2},
            nested=False,
        )
        for bits in (4, 8)
        for depth, block in ((64, 32), (96, 32), (72, 16))
        for zeros in ("", "packed")
        for bias in (False, True)
    ),
    # In a function body weights are inputs, and the node stays.
    RuleCase("nested", _model, after=AFTER, dims={"B": 2}),
    RuleCase(
        "2 bits",
        lambda: _model(bits=2),
        applications=0,
        reasons=(
            f"{FOUND} has bits=2; 4 or 8 are needed, because ONNX has no type of other widths in "
            "opset 21.",
        ),
        dims={"B": 2},
    ),
    RuleCase(
        "an older opset",
        lambda: _model(opset=20),
        applications=0,
        reasons=(
            f"{FOUND} is in a model of opset 20; 21 is needed, the first with blocked "
            "DequantizeLinear.",
        ),
        dims={"B": 2},
        nested=False,
    ),
    RuleCase(
        "float zero points",
        lambda: _model(zero_points="float"),
        applications=0,
        reasons=(f"The zero points of {FOUND} are floats; packed integers are needed.",),
        dims={"B": 2},
    ),
    RuleCase(
        "flat scales",
        lambda: _model(flat=True),
        applications=0,
        reasons=(f"The scales of {FOUND} have the shape [20]; [10, 2] is needed.",),
        dims={"B": 2},
        compare=False,
    ),
    RuleCase(
        "two readers",
        lambda: _model(calls=2),
        applications=0,
        reasons=tuple(
            f"The input B of com.microsoft::MatMulNBits (node '{name}'), the initializer 'w', has "
            "another reader; one of its own is needed, because the shared one would be stored "
            "twice."
            for name in "nm"
        ),
        dims={"B": 2},
    ),
    RuleCase(
        "a weight that a caller may replace",
        lambda: _model(given=False),
        applications=0,
        reasons=(
            f"The input B of {FOUND} is the graph input 'w'; an initializer of uint8, of known "
            "shape, is needed.",
        ),
        compare=False,
        nested=False,
    ),
    RuleCase(
        "packed for a device",
        lambda: _model(weight_prepacked=1),
        applications=0,
        reasons=(f"{FOUND} has weight_prepacked=1; the body computes the operator with 0 only.",),
        compare=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case: RuleCase) -> None:
    RuleConformance(mat_mul_n_bits_to_dequantize_rules).check(case)


def test_the_file_keeps_its_size() -> None:
    """4 bits stay 4 bits: the bytes of the weight are the bytes of the tensor."""
    model = _model(zero_points="packed")
    packed = model.graph.initializers["w"].const_value
    assert packed is not None
    before = packed.tobytes()
    RuleConformance(mat_mul_n_bits_to_dequantize_rules).apply(model)
    tensor = model.graph.initializers["w.uint4"].const_value
    assert tensor is not None
    assert (tensor.dtype, list(tensor.shape)) == (ir.DataType.UINT4, [N, 64])
    assert tensor.tobytes() == before


def test_weights_may_come_later() -> None:
    """Nothing is read while the graph is rewritten; the leaves are found by their names."""
    model = _model(zero_points="packed")
    x = {"x": np.random.default_rng(1).standard_normal((2, 3, 64)).astype(np.float32)}
    expected = run_model(model, x)["y0"]
    data = {name: value.const_value for name, value in model.graph.initializers.items()}
    for value in model.graph.initializers.values():
        value.const_value = None
    assert RuleConformance(mat_mul_n_bits_to_dequantize_rules).apply(model) == 1
    for name, value in weight_values(model).items():
        value.const_value = data[name]
    np.testing.assert_allclose(run_model(model, x)["y0"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_the_optimizer_of_onnxruntime_keeps_the_numbers(bits: int, level: str) -> None:
    """C069: axis 1 and a Transpose, which ONNX Runtime's own fusion gets right."""
    x = {"x": np.random.default_rng(1).standard_normal((2, 3, 64)).astype(np.float32)}
    expected = run_model(_model(bits, zero_points="packed"), x)["y0"]
    model = _model(bits, zero_points="packed")
    RuleConformance(mat_mul_n_bits_to_dequantize_rules).apply(model)
    assert op_counts(model)["DequantizeLinear"] == 1
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, x)[0], expected, rtol=1e-5, atol=1e-5)
