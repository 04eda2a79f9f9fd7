"""`FoldWeights`: weights are stored as they are used; nothing is read, nothing is stored twice."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from mobius_ir_rules.lazy import DerivedTensor, UnloadedWeightError, weight_values
from mobius_ir_rules.passes import EliminateCommonSubexpressions, FoldWeights, RemoveUnused
from mobius_ir_rules.passes.packed_names import packed_name
from mobius_ir_rules.testing import op_counts, run_model

HEADER = '<ir_version: 10, opset_import: ["": 24]>'
X = {"x": np.float32([[1, -2], [3, 5]])}
W = "<float[2, 2] w = {1, 2, 3, 4}, float[2, 2] v = {5, 6, 7, 8}>"


def _declare(model: ir.Model, name: str, dtype: ir.DataType, *shape: int) -> ir.Value:
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    model.graph.initializers.add(value)
    return value


def _attention_projections(dtype: ir.DataType) -> ir.Model:
    """MatMul(x, Concat(Transpose(q), Transpose(k), Transpose(v))) + Concat(biases), unloaded."""
    x = ir.val("x", dtype, ("n", 4))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 24}, name="g")
    model = ir.Model(graph, ir_version=10)
    prefix = "model.layers.0.self_attn"
    rows = {"q": 6, "k": 3, "v": 3}
    transposes = [
        ir.node(
            "Transpose",
            [_declare(model, f"{prefix}.{key}_proj.weight", dtype, size, 4)],
            {"perm": [1, 0]},
        )
        for key, size in rows.items()
    ]
    biases = [_declare(model, f"{prefix}.{key}_proj.bias", dtype, rows[key]) for key in rows]
    packed = ir.node("Concat", [node.outputs[0] for node in transposes], {"axis": -1})
    bias = ir.node("Concat", biases, {"axis": 0})
    product = ir.node("MatMul", [x, packed.outputs[0]])
    total = ir.node("Add", [product.outputs[0], bias.outputs[0]])
    graph.extend([*transposes, packed, bias, product, total])
    total.outputs[0].name = "y"
    total.outputs[0].dtype, total.outputs[0].shape = dtype, ir.Shape(["n", 12])
    graph.outputs.append(total.outputs[0])
    return model


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16], ids=str)
def test_packed_projections_without_weights_then_with_c017_c113(
    dtype: ir.DataType, caplog: Any
) -> None:
    """C017: every packed initializer declares its dtype, and the old ones are gone."""
    model = _attention_projections(dtype)
    assert FoldWeights()(model).modified is True
    assert FoldWeights()(model).modified is False
    assert op_counts(model) == Counter(MatMul=1, Add=1)
    prefix = "model.layers.0.self_attn"
    assert list(model.graph.initializers) == [
        f"{prefix}.qkv_proj.weight",
        f"{prefix}.qkv_proj.bias",
    ]
    weight, bias = model.graph.initializers.values()
    assert (weight.dtype, weight.shape) == (dtype, [4, 12])
    assert (bias.dtype, bias.shape) == (dtype, [12])
    assert isinstance(weight.const_value, DerivedTensor)
    assert not weight.const_value.is_ready()
    with pytest.raises(UnloadedWeightError, match="q_proj"):
        weight.const_value.numpy()

    random = np.random.default_rng(0)
    leaves = weight_values(model)
    assert list(leaves) == [
        f"{prefix}.{key}_proj.{kind}" for kind in ("weight", "bias") for key in "qkv"
    ]
    for leaf in leaves.values():
        assert leaf.shape is not None
        array = random.normal(size=leaf.shape.numpy()).astype(dtype.numpy())
        leaf.const_value = ir.Tensor(array, dtype=dtype)
    parts = [leaves[f"{prefix}.{key}_proj.weight"].const_value.numpy().T for key in "qkv"]
    result = weight.const_value.numpy()
    assert result.dtype == dtype.numpy()
    assert result.tobytes() == np.concatenate(parts, axis=1).tobytes()
    if dtype == ir.DataType.FLOAT16:
        x = random.normal(size=(2, 4)).astype(np.float16)
        expected = x.astype(np.float32) @ result.astype(np.float32)
        assert bias.const_value is not None
        expected += bias.const_value.numpy().astype(np.float32)
        np.testing.assert_allclose(run_model(model, {"x": x})["y"], expected, atol=5e-3, rtol=5e-3)
    assert not caplog.records


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Transpose(w) y = MatMul(x, a)", "MatMul"),
        ("a = Transpose<perm = [1, 0]>(w) b = Transpose(a) y = MatMul(x, b)", "MatMul"),
        ("s = Constant<value_ints = [0, -1]>() a = Reshape(w, s) y = MatMul(x, a)", "MatMul"),
        ("a = Cast<to = 11>(w) b = Cast<to = 1>(a) y = MatMul(x, b)", "MatMul"),
        ("a = Concat<axis = -1>(w, v) y = MatMul(x, a)", "MatMul"),
        ("k = Constant<value_ints = [0]>() a = Unsqueeze(w, k) b = Squeeze(a, k) c = Transpose(b)"
         "y = MatMul(x, c)", "MatMul"),
        ("k = Constant<value_ints = [-1, 0]>() a = Unsqueeze(w, k) b = Squeeze(a)"
         "y = MatMul(x, b)", "MatMul"),
        ("s = Constant<value_ints = [1, -9]>() "
         "e = Constant<value_ints = [-9, 9223372036854775807]>()"
         "k = Constant<value_ints = [0, 1]>() t = Constant<value_ints = [-1, 1]>()"
         "a = Slice(w, s, e, k, t) y = MatMul(x, a)", "MatMul"),
        ("s = Constant<value_ints = [1]>() e = Constant<value_ints = [2]>()"
         "a = Slice(w, s, e) b = Concat<axis = 0>(a, v) c = Transpose(b)"
         "h = Constant<value_ints = [1, 2]>() d, f = Split<axis = 1>(c, h)"
         "z = MatMul(x, d) q = MatMul(x, f) y = Concat<axis = 1>(z, q)", "MatMul Concat"),
        ("a, b = Split<axis = 1, num_outputs = 2>(w) z = MatMul(x, a) q = MatMul(x, b)"
         "y = Concat<axis = 1>(z, q)", "MatMul Concat"),
    ],
)  # fmt: skip
def test_operators(apply: Any, body: str, left: str) -> None:
    text = f"{HEADER} g (float[2, 2] x) => (float[p, q] y) {W} {{ {body} }}"
    for small in (0, 1024):
        model = apply(FoldWeights(small), text, X)
        RemoveUnused()(model)
        assert {node.op_type for node in model.graph} == set(left.split())
        lazy = [isinstance(tensor, DerivedTensor) for tensor in model.graph.initializers.tensors()]
        assert any(lazy) is (small == 0)


@pytest.mark.parametrize(
    "body",
    [
        "a = Cast<to = 17>(w) b = Cast<to = 1>(a) y = MatMul(x, b)",  # saturates: not ours to do
        "s = Shape(x) a = Reshape(w, s) y = MatMul(x, a)",
        "a = Concat<axis = 0>(w, x) y = Transpose(a)",
        "y = Transpose(w)",  # an output is made by a node
    ],
)
def test_what_is_not_constant_or_not_exact_stays(apply: Any, body: str) -> None:
    text = f"{HEADER} g (float[2, 2] x) => (float[p, q] y) {W} {{ {body} }}"
    apply(FoldWeights(), text, X, modified=False)


def test_tied_embedding_is_stored_once_c055(apply: Any, tmp_path: Path) -> None:
    """C055: Gather and Transpose -> MatMul of one weight: the Transpose stays."""
    embedding = np.random.default_rng(0).normal(size=(500, 32)).astype(np.float32)
    model = ir.from_onnx_text(
        f"""{HEADER} g (int64[n] ids) => (float[n, 500] y) <float[1] e = {{0}}> {{
            h = Gather(e, ids) t = Transpose(e) y = MatMul(h, t) }}"""
    )
    value = model.graph.initializers["e"]
    value.const_value = ir.tensor(embedding, name="e")
    value.shape = ir.Shape(embedding.shape)
    apply(FoldWeights(), model, {"ids": np.array([3, 499])}, modified=False)
    ir.save(model, tmp_path / "m.onnx", external_data="m.data")
    assert (tmp_path / "m.data").stat().st_size <= 1.05 * embedding.nbytes


@pytest.mark.parametrize(
    "body",
    [
        "a = Concat<axis = 1>(w, w) y = MatMul(x, a)",
        "a = Transpose(w) b = Cast<to = 10>(w) c = Cast<to = 1>(b) d = MatMul(x, a)"
        "y = MatMul(d, c)",
        "a = Transpose(w) d = MatMul(x, a) y = f.use(d, w)",
        "a = Transpose(w) d = MatMul(x, a) c = Constant<value = bool {1}>() "
        "y = If(c) <then_branch = t () => (float[2, 2] r) { r = MatMul(d, w) },"
        "else_branch = e () => (float[2, 2] q) { q = Neg(d) }>",
    ],
)
def test_no_second_copy_for_other_users_c055(apply: Any, body: str) -> None:
    """Users in branches and arguments of functions are users."""
    imports = '["": 24, "f": 1]' if "f." in body else '["": 24]'
    model = apply(
        FoldWeights(),
        f"""<ir_version: 10, opset_import: {imports}>
        g (float[2, 2] x) => (float[p, q] y) {W} {{ {body} }}"""
        + (
            '<domain: "f", opset_import: ["": 24]> use (u, w) => (r) { r = MatMul(u, w) }'
            if "f." in body
            else ""
        ),
        X,
        modified=False,
    )
    assert model.graph.initializers["w"].const_value.numpy().tolist() == [[1, 2], [3, 4]]


def test_slices_of_a_packed_weight_share_it(apply: Any) -> None:
    """Slices that are together no larger than their source are no copy; overlapping ones are."""
    text = f"""{HEADER} g (float[2, 2] x) => (float[2, 2] y) {W} {{
        k = Constant<value_ints = [0]>() l = Constant<value_ints = [MID]>()
        m = Constant<value_ints = [9223372036854775807]>()
        a = Slice(w, k, l) b = Slice(w, LOW, m) c = Concat<axis = 0>(a, b) y = MatMul(x, c) }}"""
    model = apply(FoldWeights(0), text.replace("MID", "1").replace("LOW", "l"), X)
    assert op_counts(model) == Counter(Constant=3, MatMul=1)
    overlapping = (
        text.replace("MID", "2").replace("LOW", "k").replace("MatMul(x, c)", "MatMul(c, x)")
    )
    overlapping = overlapping.replace("(float[2, 2] y)", "(float[4, 2] y)")
    apply(FoldWeights(0), overlapping, X, modified=False)


def test_inputs_are_not_weights_c058(apply: Any) -> None:
    """An initializer that is a graph input may be replaced by the caller."""
    text = f"""{HEADER} g (float[2, 2] x, float[2, 2] w) => (float[2, 2] y) {W} {{
        a = Transpose(w) y = MatMul(x, a) }}"""
    apply(FoldWeights(), text, {**X, "w": np.float32([[9, 8], [7, 6]])}, modified=False)


def test_weights_of_branches_c098(apply: Any) -> None:
    """A weight of the main graph that one branch transposes stays in the main graph."""
    model = apply(
        FoldWeights(0),
        f"""{HEADER} g (float[2, 2] x, bool c) => (float[2, 2] y) {W} {{
            y = If(c) <
                then_branch = t () => (float[2, 2] r) <float[2, 2] u = {{9, 8, 7, 6}}> {{
                    a = Transpose(w) b = Transpose(u) d = MatMul(x, a) r = MatMul(d, b) }},
                else_branch = e () => (float[2, 2] q) {{ q = MatMul(x, v) }}>
        }}""",
        {**X, "c": np.array(True)},
    )
    assert op_counts(model) == Counter(If=1, MatMul=3)
    assert list(model.graph.initializers) == ["w", "v"]
    assert isinstance(model.graph.initializers["w"].const_value, DerivedTensor)
    (branch, _) = model.graph.subgraphs()
    assert isinstance(branch.initializers["u"].const_value, DerivedTensor)


def test_functions_have_no_initializers(apply: Any) -> None:
    text = """<ir_version: 10, opset_import: ["": 24, "f": 1]>
        g (float[2, 2] x) => (float[2, 2] y) { y = f.body(x) }
        <domain: "f", opset_import: ["": 24]> body (u) => (v) {
            c = Constant<value = float[2, 2] {1, 2, 3, 4}>() t = Transpose(c) v = MatMul(u, t) }"""
    apply(FoldWeights(), text, X, modified=False)


def test_loaded_lazy_weights_are_not_read(apply: Any) -> None:
    def fail() -> ir.TensorProtocol:
        raise AssertionError("read")

    model = _attention_projections(ir.DataType.FLOAT)
    for value in model.graph.initializers.values():
        assert value.shape is not None
        value.const_value = ir.LazyTensor(fail, ir.DataType.FLOAT, value.shape)
    assert FoldWeights(10**9)(model).modified is True
    assert op_counts(model) == Counter(MatMul=1, Add=1)


def test_equal_transposes_are_one_after_cse() -> None:
    model = ir.from_onnx_text(
        f"""{HEADER} g (float[2, 2] x) => (float[2, 2] y) {W} {{
            a = Transpose(w) b = Transpose(w) c = MatMul(x, a) y = MatMul(c, b) }}"""
    )
    assert FoldWeights()(model).modified is False
    EliminateCommonSubexpressions()(model)
    assert FoldWeights()(model).modified is True
    assert op_counts(model) == Counter(MatMul=2)


def test_names_c077_c114(apply: Any) -> None:
    """C077: a packed weight's name may be taken already; C114: a freed name is used again."""
    model = apply(
        FoldWeights(),
        f"""{HEADER} g (float[2, 2] x) => (float[2, 2] y)
        <float[1, 2] q_proj = {{1, 2}}, float[1, 2] k_proj = {{3, 4}}> {{
            qk_proj = Neg(x)
            t = Transpose(q_proj)
            u = Transpose(k_proj)
            a = Concat<axis = 1>(t, u)
            y = MatMul(qk_proj, a)
        }}""",
        X,
    )
    assert list(model.graph.initializers) == ["qk_proj_2"]


def test_packed_names() -> None:
    prefixed = [f"h.{key}_proj.w" for key in "qkv"]
    for names, expected in [
        (prefixed, "h.qkv_proj.w"),
        (["m.gate_proj.w", "m.up_proj.w"], "m.gate_up_proj.w"),
        (["m.experts.0.w", "m.experts.1.w"], "m.experts.w"),
        (["query", "key"], "query_key"),
        (["0", "1"], "0.packed"),
        (["a.w", "b.c.w"], "a.w.packed"),
        (["w", "w"], "w.packed"),
        (["h.0.q", "h.1.k"], "h.0.q.packed"),
    ]:
        assert packed_name(names) == expected


def test_split_weights_keep_their_order_and_dtype() -> None:
    array = np.arange(12).reshape(2, 6).astype(ml_dtypes.bfloat16)
    model = ir.from_onnx_text(
        f"""{HEADER} g (bfloat16[2, 2] x) => (bfloat16[2, 6] y) {{
            s = Constant<value_ints = [1, 2, 3]>()
            y = Identity(x)
        }}"""
    )
    weight = _declare(model, "qkv.weight", ir.DataType.BFLOAT16, 2, 6)
    split = ir.node("Split", [weight, model.graph[0].outputs[0]], {"axis": -1}, num_outputs=3)
    uses = [ir.node("Neg", [output]) for output in split.outputs]
    model.graph.extend([split, *uses])
    assert FoldWeights()(model).modified is True
    weight.const_value = ir.tensor(array)
    names = [f"qkv.weight.{index}" for index in range(3)]
    assert list(model.graph.initializers) == names
    parts = [value.const_value.numpy() for value in model.graph.initializers.values()]
    assert [part.tolist() for part in parts] == [
        array[:, :1].tolist(), array[:, 1:3].tolist(), array[:, 3:].tolist()
    ]  # fmt: skip
    assert {part.dtype for part in parts} == {np.dtype(ml_dtypes.bfloat16)}


def test_saving_holds_one_weight_at_a_time_c110(tmp_path: Path) -> None:
    """C110: no Transpose is left, and 16 weights of 2 MB are saved in the memory of a few."""
    size = 512 * 1024 * 4
    x = ir.val("x", ir.DataType.FLOAT, (1, 512))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 24}, name="g")
    model = ir.Model(graph, ir_version=10)
    for index in range(16):
        weight = _declare(model, f"w{index}", ir.DataType.FLOAT, 1024, 512)
        transposed = ir.node("Transpose", [weight], {"perm": [1, 0]})
        product = ir.node("MatMul", [x, transposed.outputs[0]])
        graph.extend([transposed, product])
        product.outputs[0].name = f"y{index}"
        product.outputs[0].dtype = ir.DataType.FLOAT
        product.outputs[0].shape = ir.Shape([1, 1024])
        graph.outputs.append(product.outputs[0])
    FoldWeights()(model)
    assert op_counts(model) == Counter(MatMul=16)
    for index, leaf in enumerate(weight_values(model).values()):

        def load(index: int = index) -> ir.TensorProtocol:
            return ir.tensor(np.full((1024, 512), index, np.float32))

        leaf.const_value = ir.LazyTensor(load, ir.DataType.FLOAT, ir.Shape([1024, 512]))
    tracemalloc.start()
    ir.save(model, tmp_path / "m.onnx", external_data="m.data")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "m.data").stat().st_size >= 16 * size
    assert peak < 5 * size
