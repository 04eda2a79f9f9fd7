"""Tensors beyond a target's limits: which are named, with what size, and for which targets."""

from __future__ import annotations

import dataclasses
import re
import warnings

import onnx_ir as ir
import pytest

from mobius.optimizer import optimize_model
from mobius_eps import EpCapabilities, get_ep

F16, F32 = ir.DataType.FLOAT16, ir.DataType.FLOAT


def gather(rows: int, width: int, dtype: str = "float16") -> ir.Model:
    """An embedding table without data."""
    model = ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g (int64[B, S] ids, {dtype}[{rows}, {width}] table) => ({dtype}[B, S, {width}] y) {{
            y = Gather (table, ids)
        }}
    """)
    table = model.graph.inputs.pop(1)
    model.graph.initializers[str(table.name)] = table
    return model


def warnings_of(model: ir.Model, capabilities: EpCapabilities, dtype: ir.DataType) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = optimize_model(model, capabilities, dtype)
    assert tuple(str(each.message) for each in caught) == report.warnings
    return list(report.warnings)


def test_a_table_beyond_a_buffer() -> None:
    """C118: a vocabulary of 152k and a width of 896 in float16 are 272 MB."""
    webgpu = get_ep("webgpu")
    assert webgpu.max_buffer_bytes == 268_435_456
    (message,) = warnings_of(gather(152_000, 896), webgpu, F16)
    assert message == (
        "1 tensor is larger than 268,435,456 bytes, the most that every device of ep='webgpu' "
        "holds in one buffer; one with smaller buffers refuses the model or runs the node on the "
        "CPU: 'table' FLOAT16 [152000,896], 136,192,000 elements, 272,384,000 bytes. Build in a "
        "narrower dtype, quantize the weights, or make sure of the devices' limit."
    )
    # Exactly as large as a buffer is fine.
    assert warnings_of(gather(131_072, 1024), webgpu, F16) == []
    assert warnings_of(gather(152_000, 896), get_ep("cuda"), F16) == []


def test_a_table_that_int32_does_not_index() -> None:
    """C119: the table of Gemma 4's embedding of each layer."""
    (message,) = warnings_of(gather(262_144, 8960), get_ep("cuda"), F16)
    assert message == (
        "1 tensor is of more than 2,147,483,647 elements, the most that the kernels of ep='cuda' "
        "count right; rows beyond may be read from elsewhere: 'table' FLOAT16 [262144,8960], "
        "2,348,810,240 elements, 4,697,620,480 bytes. Use a runtime that counts further (ONNX "
        "Runtime 1.27 or later for Gather), or split the table."
    )
    assert warnings_of(gather(262_144, 8191), get_ep("cuda"), F16) == []


def test_a_weight_of_products_is_read_by_matrices() -> None:
    """Stacked experts have more elements than int32 counts, and no kernel that counts them."""
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        g (float16[256, S, 4096] x, float16[256, 4096, 4096] w) => (float16[256, S, 4096] y) {
            y = MatMul (x, w)
        }
    """)
    weight = model.graph.inputs.pop(1)
    model.graph.initializers[str(weight.name)] = weight
    assert warnings_of(model, get_ep("cuda"), F16) == []


@pytest.mark.parametrize(
    ("field", "limit"), [("max_buffer_bytes", 80), ("max_tensor_elements", 40)]
)
def test_each_limit_has_a_reader(field: str, limit: int) -> None:
    capable = EpCapabilities(name="capable")
    assert warnings_of(gather(6, 7), capable, F16) == []
    changed = dataclasses.replace(capable, **{field: limit})  # type: ignore[arg-type]
    (message,) = warnings_of(gather(6, 7), changed, F16)
    assert re.search(rf"\b{limit}\b.*42 elements, 84 bytes", message)
    assert warnings_of(gather(5, 8), changed, F16) == []


def test_the_largest_are_named_and_the_others_counted() -> None:
    names = [f"w{index}" for index in range(5)]
    model = ir.from_onnx_text(f"""
        <ir_version: 10, opset_import: ["" : 24]>
        g (float[N] x, float[3] w0, float[4] w1, float[5] w2, float[6] w3, float[7] w4)
            => (float[M] y) {{ y = Concat <axis = 0> (x, {", ".join(names)}) }}
    """)
    small = EpCapabilities(name="small", max_buffer_bytes=11)
    (message,) = warnings_of(model, small, F32)
    assert message.startswith("5 tensors are larger than 11 bytes")
    assert re.findall(r"'(w\d)'", message) == ["w4", "w3", "w2"]
    assert "; and 2 more. " in message


def test_packed_integers_and_strings() -> None:
    """Two int4 are one byte; texts have no size."""
    model = ir.from_onnx_text("""
        <ir_version: 10, opset_import: ["" : 24]>
        g (int4[5] a, string[100] t) => (int4[5] b, string[100] u) {
            b = Identity (a)
            u = Identity (t)
        }
    """)
    limit = EpCapabilities(name="small", max_buffer_bytes=2)
    (message,) = warnings_of(model, limit, F32)
    assert "'a' INT4 [5], 5 elements, 3 bytes" in message
    assert warnings_of(model, EpCapabilities(name="small", max_buffer_bytes=3), F32) == []
