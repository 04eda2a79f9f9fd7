"""Standard-ONNX bodies of custom operators: `FUNCTIONS[domain, name](opset_version)` makes one.

Where the calls of an operator differ in structure, the row is a `CallBody` and
`FUNCTIONS[domain, name].for_call(node, opset_version)` makes the body of that call.

A body makes an operator portable: a runtime that does not know the operator expands the body, and
`InlineFunctions` expands it for one that knows no functions. ONNX Runtime ignores the body of an
operator that it has a schema for, so each body is tested inlined, against the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from mobius_ir_rules.functions.bias_gelu import BIAS_GELU, bias_gelu
from mobius_ir_rules.functions.block_masks import BLOCK_DIAGONAL_MASK, block_diagonal_mask
from mobius_ir_rules.functions.calls import CallBody
from mobius_ir_rules.functions.causal_conv_with_state import (
    CAUSAL_CONV_WITH_STATE,
    CAUSAL_CONV_WITH_STATE_BODY,
)
from mobius_ir_rules.functions.fast_gelu import FAST_GELU, FAST_GELU_BODY
from mobius_ir_rules.functions.fused_mat_mul import FUSED_MAT_MUL, fused_mat_mul
from mobius_ir_rules.functions.gated_recurrence import GATED_RECURRENCE, gated_recurrence
from mobius_ir_rules.functions.gather_block_quantized import (
    GATHER_BLOCK_QUANTIZED,
    GATHER_BLOCK_QUANTIZED_BODY,
)
from mobius_ir_rules.functions.gelu import GELU, gelu
from mobius_ir_rules.functions.group_query_attention import (
    GROUP_QUERY_ATTENTION,
    GROUP_QUERY_ATTENTION_BODY,
)
from mobius_ir_rules.functions.linear_attention import LINEAR_ATTENTION, LINEAR_ATTENTION_BODY
from mobius_ir_rules.functions.masks import (
    CAUSAL_MASK,
    CHUNKED_MASK,
    SLIDING_WINDOW_MASK,
    causal_mask,
    chunked_mask,
    sliding_window_mask,
)
from mobius_ir_rules.functions.mat_mul_n_bits import MAT_MUL_N_BITS, MAT_MUL_N_BITS_BODY
from mobius_ir_rules.functions.moe import MOE, MOE_BODY
from mobius_ir_rules.functions.packed_multi_head_attention import (
    PACKED_MULTI_HEAD_ATTENTION,
    PACKED_MULTI_HEAD_ATTENTION_BODY,
)
from mobius_ir_rules.functions.q_moe import Q_MOE, Q_MOE_BODY
from mobius_ir_rules.functions.quick_gelu import QUICK_GELU, quick_gelu
from mobius_ir_rules.functions.rotary_embedding import ROTARY_EMBEDDING, rotary_embedding
from mobius_ir_rules.functions.routed_experts import ROUTED_EXPERTS, ROUTED_EXPERTS_BODY
from mobius_ir_rules.functions.selective_scan import SELECTIVE_SCAN, selective_scan
from mobius_ir_rules.functions.sink_attention import SINK_ATTENTION, SINK_ATTENTION_BODY
from mobius_ir_rules.functions.skip_layer_normalization import (
    SKIP_LAYER_NORMALIZATION,
    skip_layer_normalization,
)
from mobius_ir_rules.functions.skip_simplified_layer_normalization import (
    SKIP_SIMPLIFIED_LAYER_NORMALIZATION,
    skip_simplified_layer_normalization,
)

FUNCTIONS: Mapping[tuple[str, str], Callable[[int], ir.Function]] = MappingProxyType(
    {
        BIAS_GELU: bias_gelu,
        BLOCK_DIAGONAL_MASK: block_diagonal_mask,
        CAUSAL_CONV_WITH_STATE: CAUSAL_CONV_WITH_STATE_BODY,
        CAUSAL_MASK: causal_mask,
        CHUNKED_MASK: chunked_mask,
        FAST_GELU: FAST_GELU_BODY,
        FUSED_MAT_MUL: fused_mat_mul,
        GATHER_BLOCK_QUANTIZED: GATHER_BLOCK_QUANTIZED_BODY,
        GATED_RECURRENCE: gated_recurrence,
        GELU: gelu,
        GROUP_QUERY_ATTENTION: GROUP_QUERY_ATTENTION_BODY,
        LINEAR_ATTENTION: LINEAR_ATTENTION_BODY,
        MAT_MUL_N_BITS: MAT_MUL_N_BITS_BODY,
        MOE: MOE_BODY,
        PACKED_MULTI_HEAD_ATTENTION: PACKED_MULTI_HEAD_ATTENTION_BODY,
        QUICK_GELU: quick_gelu,
        Q_MOE: Q_MOE_BODY,
        ROTARY_EMBEDDING: rotary_embedding,
        ROUTED_EXPERTS: ROUTED_EXPERTS_BODY,
        SINK_ATTENTION: SINK_ATTENTION_BODY,
        SELECTIVE_SCAN: selective_scan,
        SKIP_LAYER_NORMALIZATION: skip_layer_normalization,
        SKIP_SIMPLIFIED_LAYER_NORMALIZATION: skip_simplified_layer_normalization,
        SLIDING_WINDOW_MASK: sliding_window_mask,
    }
)
"""The operators that have a body here: (domain, name) -> builder(opset_version) or `CallBody`."""

__all__ = ["FUNCTIONS", "CallBody"]
