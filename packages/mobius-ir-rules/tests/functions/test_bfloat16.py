"""Bodies in bfloat16, which no CPU kernel runs: valid in every opset, expanded and not."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from mobius_ir_rules.functions.attach import AttachFunctions
from mobius_ir_rules.passes import InlineFunctions

B16 = "bfloat16"
CALLS = {
    "GroupQueryAttention": f"""
        g ({B16}[B,S,64] q, {B16}[B,S,32] k, {B16}[B,S,32] v, {B16}[B,2,P,16] pk,
           {B16}[B,2,P,16] pv, int32[B] s, int32 t, {B16}[32,8] cos, {B16}[32,8] sin, {B16}[4] h)
        => ({B16}[B,S,64] y, {B16}[B,2,T,16] ok, {B16}[B,2,T,16] ov) {{
            y, ok, ov = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2,
                do_rotary = 1, softcap = 2.0, local_window_size = 3>
                (q, k, v, pk, pv, s, t, cos, sin, , , h)
        }}""",
    "MoE": f"""
        g ({B16}[N,64] x, {B16}[N,4] r, {B16}[4,16,64] w1, {B16}[4,16] b1, {B16}[4,64,8] w2)
        => ({B16}[N,64] y) {{
            y = com.microsoft.MoE <k = 2, activation_type = "swiglu", swiglu_fusion = 1,
                swiglu_limit = 7.0, normalize_routing_weights = 1> (x, r, w1, b1, w2)
        }}""",
    "QMoE": f"""
        g ({B16}[N,64] x, {B16}[N,4] r, uint8[4,32,32] w1, {B16}[4,32,2] s1, uint8[4,64,16] w2,
           {B16}[4,64,1] s2)
        => ({B16}[N,64] y) {{
            y = com.microsoft.QMoE <k = 2, block_size = 32, weights_prepacked = 0,
                normalize_routing_weights = 1> (x, r, w1, s1, , w2, s2)
        }}""",
    "MatMulNBits": f"""
        g ({B16}[N,64] x, uint8[8,2,16] w, {B16}[8,2] s, uint8[8,1] z) => ({B16}[N,8] y) {{
            y = com.microsoft.MatMulNBits <K = 64, N = 8, block_size = 32, bits = 4> (x, w, s, z)
        }}""",
    "LinearAttention": f"""
        g ({B16}[B,S,32] q, {B16}[B,S,16] k, {B16}[B,S,32] v, float[B,2,8,16] p, {B16}[B,S,2] d,
           {B16}[B,S,2] b)
        => ({B16}[B,S,64] y, float[B,2,8,16] s) {{
            y, s = com.microsoft.LinearAttention <q_num_heads = 4, kv_num_heads = 2>
                (q, k, v, p, d, b)
        }}""",
    "CausalConvWithState": f"""
        g ({B16}[B,6,L] x, {B16}[6,1,4] w, {B16}[6] b, {B16}[B,6,3] p)
        => ({B16}[B,6,L] y, {B16}[B,6,3] s) {{
            y, s = com.microsoft.CausalConvWithState <activation = "silu"> (x, w, b, p)
        }}""",
    "PackedMultiHeadAttention": f"""
        g ({B16}[N,64] q, {B16}[N,64] k, {B16}[N,64] v, int32[B,S] t, int32[M] c)
        => ({B16}[N,64] y) {{
            y = com.microsoft.PackedMultiHeadAttention <num_heads = 4> (q, k, v, , t, c)
        }}""",
}


@pytest.mark.parametrize("opset", [17, 18, 20, 21, 22, 23, 24])
@pytest.mark.parametrize("name", CALLS)
def test_types_hold(name: str, opset: int) -> None:
    """C105: every operator takes the type in that opset; outputs keep theirs, states too."""
    model = ir.from_onnx_text(
        f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> {CALLS[name]}'
    )
    assert not AttachFunctions()(model).refusals
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    InlineFunctions()(model)
    assert {node.domain for node in model.graph.all_nodes()} == {""}
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for node in model.graph.all_nodes():
        schema = onnx.defs.get_schema(node.op_type, opset)
        assert schema.min_input <= len(node.inputs) <= schema.max_input, node
        assert set(node.attributes) <= set(schema.attributes), node
