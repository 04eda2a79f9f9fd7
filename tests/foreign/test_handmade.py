"""Graphs by hand on every EP: layers in functions, If and Loop bodies, any names, opset 13 to 25.

One block after the other holds what the rules look for: a layer norm and an RMS norm of
primitives, an exact GELU, a gate, a transposed product, a residual.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes
import pytest
from tests.foreign.checks import EPS, Outcome, Reference, check, optimise

WIDTH = 16
WEIGHTS = {
    "w1": (WIDTH, WIDTH),
    "w2": (WIDTH, WIDTH),
    "b1": (WIDTH,),
    "g1": (WIDTH,),
    "g2": (WIDTH,),
    "c1": (WIDTH,),
}
# Constants are nodes, so that the same text is a body too.
CONSTANTS = "".join(
    f"{name} = Constant<value_float: float = {value}>()  "
    for name, value in {
        "two": 2.0,
        "eps": 1e-5,
        "root": 1.4142135623730951,
        "half": 0.5,
        "one": 1.0,
    }.items()
)
BLOCK = """
    mean = ReduceMean{AXES}(x{COMMA})  d = Sub(x, mean)  sq = Pow(d, two)
    var = ReduceMean{AXES}(sq{COMMA})  ve = Add(var, eps)  sd = Sqrt(ve)  n1 = Div(d, sd)
    n2 = Mul(n1, g1)  n3 = Add(n2, c1)
    t1 = Transpose<perm: ints = [1, 0]>(w1)  m1 = MatMul(n3, t1)  m2 = Add(m1, b1)
    e1 = Div(m2, root)  e2 = Erf(e1)  e3 = Add(e2, one)  e4 = Mul(m2, e3)  e5 = Mul(e4, half)
    r = Add(x, e5)
    rs = Mul(r, r)  rm = ReduceMean{AXES}(rs{COMMA})  re = Add(rm, eps)  rq = Sqrt(re)
    rr = Reciprocal(rq)  rn = Mul(r, rr)  rw = Mul(g2, rn)
    m3 = MatMul(rw, w2)  sg = Sigmoid(m3)  sw = Mul(m3, sg)
    y = Add(r, sw)
"""


def block(opset: int) -> str:
    """Return the nodes of the block, axes as the opset has them."""
    inputs = opset >= 18
    axes = "<keepdims: int = 1>" if inputs else "<axes: ints = [-1], keepdims: int = 1>"
    last = "last = Constant<value_ints: ints = [-1]>()  " if inputs else ""
    text = BLOCK.replace("{AXES}", axes).replace("{COMMA}", ", last" if inputs else "")
    return CONSTANTS + last + text


def weights_of(model: ir.Model) -> None:
    """Make initializers of the inputs that are weights."""
    random = np.random.default_rng(3)
    for value in list(model.graph.inputs):
        if value.name in WEIGHTS:
            shape = WEIGHTS[value.name]
            array = random.standard_normal(shape) / (4.0 if len(shape) == 2 else 1.0)
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(array.astype(np.float32), name=value.name)
            model.graph.register_initializer(value)


DECLARED = ", ".join(
    f"float[{', '.join(map(str, shape))}] {name}" for name, shape in WEIGHTS.items()
)


def plain(opset: int = 24) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": {opset}]> g (float[B,S,{WIDTH}] x, {DECLARED}) => '
        f"(float[B,S,{WIDTH}] y) {{ {block(opset)} }}"
    )


def in_function(opset: int = 24) -> ir.Model:
    names = ", ".join(WEIGHTS)
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": {opset}, "layers": 1]> '
        f"g (float[B,S,{WIDTH}] x, {DECLARED}) => (float[B,S,{WIDTH}] y) "
        f"{{ z = layers.Block(x, {names})  y = layers.Block(z, {names}) }} "
        f'<domain: "layers", opset_import: ["": {opset}]> Block (x, {names}) => (y) '
        f"{{ {block(opset)} }}"
    )


def two_layers(opset: int = 24) -> ir.Model:
    """The block twice, reading the same weights."""
    return common_passes.InlinePass()(in_function(opset)).model


def in_if(opset: int = 24) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": {opset}]> '
        f"g (float[B,S,{WIDTH}] x, bool on, {DECLARED}) => (float[B,S,{WIDTH}] out) {{ "
        f"out = If(on) <then_branch = t () => (float[B,S,{WIDTH}] y) {{ {block(opset)} }}, "
        f"else_branch = e () => (float[B,S,{WIDTH}] q) {{ q = Neg(x) }}> }}"
    )


def in_loop(opset: int = 24) -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": {opset}]> '
        f"g (float[B,S,{WIDTH}] start, {DECLARED}) => (float[B,S,{WIDTH}] out) {{ "
        "times = Constant<value_int: int = 3>()  yes = Constant<value: tensor = bool {1}>() "
        f"out = Loop(times, yes, start) <body = b (int64 i, bool c, float[B,S,{WIDTH}] x) => "
        f"(bool c2, float[B,S,{WIDTH}] y) {{ c2 = Identity(c) {block(opset)} }}> }}"
    )


def renamed(opset: int = 24) -> ir.Model:
    """Inputs with the names of other inputs, to mislead whoever looks them up."""
    model = plain(opset)
    model.graph.inputs[0].name = "attention_mask"
    model.graph.outputs[0].name = "past_key_values.0.key"
    for value, name in zip(model.graph.inputs[1:], ("cos_cache", "position_ids"), strict=False):
        value.name = name
    return model


def unsorted(opset: int = 24) -> ir.Model:
    model = plain(opset)
    nodes = list(model.graph)
    model.graph.remove(nodes[-1])
    model.graph.insert_before(nodes[0], nodes[-1])
    return model


def read_outside(opset: int = 24) -> ir.Model:
    """Values in the middle of each pattern leave the graph."""
    model = plain(opset)
    for node in model.graph:
        if node.outputs[0].name in ("d", "ve", "m2", "e2", "r", "rn", "sg"):
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            model.graph.outputs.append(node.outputs[0])
    return model


def reference(model: ir.Model) -> Reference:
    weights_of(model)
    data = ir.to_proto(model).SerializeToString()
    inputs = {}
    random = np.random.default_rng(5)
    for value in model.graph.inputs:
        if value.dtype == ir.DataType.BOOL:
            inputs[value.name] = np.array(True)
        else:
            shape = [
                dim if isinstance(dim, int) else {"B": 2, "S": 5}[dim.value] for dim in value.shape
            ]
            inputs[value.name] = random.standard_normal(shape).astype(np.float32)
    return Reference(data, inputs)


def require(found: Outcome) -> None:
    assert found.error == ""
    assert found.compared


SHAPES = [plain, two_layers, in_function, in_if, in_loop, renamed, unsorted, read_outside]


@pytest.mark.parametrize("make", SHAPES, ids=lambda make: make.__name__)
def test_every_shape_on_every_ep(make):
    for opset in (18, 24):
        found = reference(make(opset))
        for ep in EPS:
            require(check(found, ep, "f32", "encoder", again=True))
            require(check(found, ep, "f32", "decoder", primitives=False, again=True))


@pytest.mark.parametrize("opset", range(13, 26))
def test_every_opset_on_every_ep(opset):
    found = reference(plain(opset))
    for ep in EPS:
        require(check(found, ep, "f32", "encoder", again=True))


def test_what_fuses_at_opset_24():
    found = check(reference(plain()), "cpu", "f32", "encoder")
    applied = {name: found.applied[name] for name in found.applied if found.applied[name]}
    assert applied["RMSNormFusion"] == 1
    assert applied["LayerNormFusion"] == 1
    assert applied["quick_gelu_rules"] == 1
    assert applied["GeluFusion"] == 1
    assert applied["BiasGelu"] == 1
    assert applied["SkipNorm"] == 1


def test_fused_graph_of_one_ep_is_food_for_another():
    """What webgpu got, optimised for onnx-standard, and the other way round."""
    found = reference(plain())
    for first in EPS:
        model = ir.from_proto(onnx.load_from_string(found.data))
        optimise(model, first, "f32", "encoder", primitives=True)
        data = ir.to_proto(model).SerializeToString(deterministic=True)
        second = Reference(data, found.inputs)
        for ep in EPS:
            require(check(second, ep, "f32", "encoder"))
