"""`BUILTIN_EPS`: the execution providers that mobius ships, one entry each, and nothing else.

The values are those of docs/execution_providers.md. Where a flag is False because a target has no
kernel, the comment says where that was read.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from mobius_eps.capabilities import STANDARD_DOMAIN, EpCapabilities

_F32 = ir.DataType.FLOAT
_F16 = ir.DataType.FLOAT16
_BF16 = ir.DataType.BFLOAT16

BUILTIN_EPS: Final[tuple[EpCapabilities, ...]] = (
    # Portable ONNX: custom operators stay, their function bodies are the fallback.
    EpCapabilities(name="default"),
    EpCapabilities(
        name="cpu",
        gqa_dtypes=frozenset({_F32}),
        qkv_pack_dtypes=frozenset({_F32}),
        default_int4_accuracy_level=4,
        dtypes=frozenset({_F32, _F16}),  # no bfloat16 kernels in ORT's CPU EP
    ),
    EpCapabilities(
        name="cuda",
        gqa_dtypes=frozenset({_F16, _BF16}),
        qkv_pack_dtypes=frozenset({_F16, _BF16}),
        supports_packed_multi_head_attention=True,  # kernels in float32 and float16
        provider_options={
            "enable_cuda_graph": "0",
            # Skip*LayerNormalization accumulates in float32, as LayerNormalization does.
            "enable_skip_layer_norm_strict_mode": "1",
        },
    ),
    EpCapabilities(
        name="dml",
        gqa_dtypes=frozenset({_F16}),
        supports_fused_rope=False,
        supports_fused_moe=False,  # no MoE in DirectML's operator table (ORT 1.24)
        dtypes=frozenset({_F32, _F16}),
    ),
    EpCapabilities(
        name="webgpu",
        gqa_dtypes=frozenset({_F32, _F16}),
        qkv_pack_dtypes=frozenset({_F32, _F16}),
        supports_fused_matmul=False,  # neither FusedMatMul nor MoE in the plugin EP 0.4
        supports_fused_moe=False,
        default_int4_accuracy_level=4,
        # "basic" is what onnxruntime-genai 0.18 asks for while graph capture is off.
        provider_options={"enableGraphCapture": "0", "validationMode": "basic"},
        dtypes=frozenset({_F32, _F16}),
    ),
    EpCapabilities(
        name="mlx",
        gqa_dtypes=frozenset({_F32, _F16, _BF16}),
        supports_fused_matmul=False,  # neither FusedMatMul nor MoE in the plugin EP 0.31
        supports_fused_moe=False,
        supports_packed_multi_head_attention=True,
    ),
    EpCapabilities(
        name="trt-rtx",
        gqa_dtypes=frozenset({_F16, _BF16}),
        qkv_pack_dtypes=frozenset({_F16, _BF16}),
        supports_skip_layer_norm=False,
        supports_fused_matmul=False,  # its ONNX parser takes neither FusedMatMul nor MoE
        supports_fused_moe=False,
        provider_options={"enable_cuda_graph": "1"},
        enable_graph_capture=True,
    ),
    # Strict ONNX: no operator outside the standard domain.
    EpCapabilities(
        name="onnx-standard",
        supports_fused_rope=False,
        supports_skip_layer_norm=False,
        supports_fused_matmul=False,
        supports_fused_moe=False,
        allowed_domains=frozenset({STANDARD_DOMAIN}),
    ),
)
