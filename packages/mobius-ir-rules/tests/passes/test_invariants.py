"""`check_model_invariants`: each way to be wrong is found, all of them in one message."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from mobius_ir_rules.passes import CheckInvariants, InvariantError, check_model_invariants

TEXT = """<ir_version: 10, opset_import: ["": 24, "f": 1, "com.microsoft": 1]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
        a = f.one(x)
        b = com.microsoft.Gelu(a)
        y = If(c) <then_branch = t () => (float[2] r) { d = Add(b, w) r = Neg(d) },
                   else_branch = e () => (float[2] q) { q = Abs(x) }> }
    <domain: "f", opset_import: ["": 24]> one (u) => (v) { v = Neg(u) }"""


def _model() -> ir.Model:
    return ir.from_onnx_text(TEXT)


def test_a_valid_model() -> None:
    check_model_invariants(
        _model(),
        allowed_domains={"", "com.microsoft"},
        input_names=["x", "c"],
        output_names=["y"],
    )
    assert CheckInvariants({"", "com.microsoft"}, ["x", "c"], ["y"])(_model()).modified is False


def test_domains() -> None:
    model = _model()
    with pytest.raises(InvariantError, match=r"is com\.microsoft::Gelu, and neither") as error:
        check_model_invariants(model, allowed_domains={""})
    assert "f::one" not in str(error.value)
    model.functions.clear()
    with pytest.raises(InvariantError, match="is f::one, and neither"):
        check_model_invariants(model, allowed_domains={"", "com.microsoft"})


def test_domains_in_function_bodies() -> None:
    model = _model()
    function = model.functions["f", "one", ""]
    function[0].domain = "com.microsoft"
    function.opset_imports["com.microsoft"] = 1
    with pytest.raises(InvariantError, match=r"in function f::one is com\.microsoft::Neg"):
        check_model_invariants(model, allowed_domains={""})


def test_interface() -> None:
    with pytest.raises(InvariantError, match=r"inputs are \['x', 'c'\], declared were \['c'\]"):
        CheckInvariants(input_names=["c"])(_model())
    with pytest.raises(InvariantError, match=r"outputs are \['y'\], declared were \[\]"):
        check_model_invariants(_model(), output_names=[])


def test_imports_c105() -> None:
    model = _model()
    del model.graph.opset_imports["com.microsoft"]
    model.graph.opset_imports["unused"] = 1
    model.functions["f", "one", ""].opset_imports["unused"] = 1
    with pytest.raises(InvariantError) as error:
        check_model_invariants(model)
    assert str(error.value).splitlines() == [
        "The model is invalid:",
        "- no opset import for the domain 'com.microsoft' of a node in the graph",
        "- an opset import for the domain 'unused' that no node has in the graph",
        "- an opset import for the domain 'unused' that no node has in function f::one",
    ]


def test_names_c077() -> None:
    model = _model()
    branches = list(model.graph.subgraphs())
    branches[1][0].outputs[0].name = "d"
    branches[1][0].name = model.graph[0].name = "n"
    with pytest.raises(InvariantError) as error:
        check_model_invariants(model)
    assert "the value name 'd' twice in the graph" in str(error.value)
    assert "the node name 'n' twice in the graph" in str(error.value)


def test_dangling_values() -> None:
    model = _model()
    branches = list(model.graph.subgraphs())
    # A value of one branch does not exist in the other, nor a removed initializer anywhere.
    branches[1][0].replace_input_with(0, branches[0][0].outputs[0])
    del model.graph.initializers["w"]
    gelu = model.graph[1]
    model.graph.remove(gelu)
    model.graph.append(gelu)
    with pytest.raises(InvariantError) as error:
        check_model_invariants(model)
    for name in ("d", "w", "b"):
        assert f"reads {name!r}, which nothing before it defines" in str(error.value)


def test_undefined_output() -> None:
    model = _model()
    model.graph.outputs.append(ir.Value(name="z"))
    with pytest.raises(InvariantError, match="the output 'z' is not defined"):
        check_model_invariants(model)
