"""`BUILTIN_EPS`: the execution providers that mobius ships, one entry each, and nothing else.

The values are those of docs/execution_providers.md. Where a target has no kernel, a comment or the
`reason` of the `Lack` says where that was read.

`runtime_names` are those of ONNX Runtime 1.32 and onnxruntime-genai 0.18.

`max_opset` is 24, what models are written in, where the target's table of kernels has the versions
of opset 24, and the newest opset that it has otherwise.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from mobius_eps.capabilities import CONTRIB_DOMAIN, STANDARD_DOMAIN, EpCapabilities
from mobius_eps.lack import Lack
from mobius_eps.runtime_names import GENAI_CPU, RuntimeNames

_F32 = ir.DataType.FLOAT
_F16 = ir.DataType.FLOAT16
_BF16 = ir.DataType.BFLOAT16


def _standard(reason: str, *op_types: str) -> tuple[Lack, ...]:
    return tuple(Lack(op_type, reason=reason) for op_type in op_types)


def _contrib(
    reason: str, *op_types: str, dtypes: frozenset[ir.DataType] = frozenset()
) -> tuple[Lack, ...]:
    return tuple(Lack(op_type, CONTRIB_DOMAIN, dtypes, reason=reason) for op_type in op_types)


def _gqa(reason: str, *uses: str) -> tuple[Lack, ...]:
    return tuple(
        Lack("GroupQueryAttention", CONTRIB_DOMAIN, attribute=use, reason=reason) for use in uses
    )


def _q_moe(reason: str, *uses: str) -> tuple[Lack, ...]:
    return tuple(Lack("QMoE", CONTRIB_DOMAIN, attribute=use, reason=reason) for use in uses)


# ONNX Runtime ignores the function body of an operator that it has a schema for. In float16 it
# puts casts around such a node, in bfloat16 it refuses the model.
_ORT_CPU_LACKS = (
    *_contrib(
        "ORT's CPU EP has kernels in float32 and float16 only (1.32)",
        "GatherBlockQuantized",
        "MatMulNBits",
        dtypes=frozenset({_BF16}),
    ),
    *_contrib(
        "ORT's CPU EP has kernels in float32 only (1.32)",
        "BiasGelu",
        "CausalConvWithState",
        "FastGelu",
        "FusedMatMul",
        "Gelu",
        "MoE",
        "QuickGelu",
        dtypes=frozenset({_F16, _BF16}),
    ),
    *_q_moe(
        "ORT's CPU EP rounds what 8-bit experts are multiplied with to 8 bits, whatever "
        "accuracy_level says (1.32)",
        "expert_weight_bits=8, accuracy_level=0",
    ),
)

_CPU_NAMES = RuntimeNames(ort="CPUExecutionProvider", genai=GENAI_CPU)

BUILTIN_EPS: Final[tuple[EpCapabilities, ...]] = (
    # Portable ONNX: custom operators stay, their function bodies are the fallback.
    # It runs on ORT's CPU EP too, so it keeps no known operator that only other EPs have.
    EpCapabilities(name="default", lacks=_ORT_CPU_LACKS, runtime_names=_CPU_NAMES),
    EpCapabilities(
        name="cpu",
        keeps_function_bodies=False,
        gqa_dtypes=frozenset({_F32}),
        qkv_pack_dtypes=frozenset({_F32}),
        default_int4_accuracy_level=4,
        dtypes=frozenset({_F32, _F16}),  # no bfloat16 kernels in ORT's CPU EP
        lacks=_ORT_CPU_LACKS,
        runtime_names=_CPU_NAMES,
    ),
    EpCapabilities(
        name="cuda",
        keeps_function_bodies=False,
        fast_loops=False,
        gqa_dtypes=frozenset({_F16, _BF16}),
        qkv_pack_dtypes=frozenset({_F16, _BF16}),
        supports_packed_multi_head_attention=True,  # kernels in float32 and float16
        provider_options={
            "enable_cuda_graph": "0",
            # Skip*LayerNormalization accumulates in float32, as LayerNormalization does.
            "enable_skip_layer_norm_strict_mode": "1",
        },
        runtime_names=RuntimeNames("CUDAExecutionProvider", "cuda", "enable_cuda_graph"),
        # Kernels index with int32: Gather before ORT 1.27, and others still.
        max_tensor_elements=2**31 - 1,
        lacks=(
            *_contrib(
                "ORT's CUDA EP has kernels in float32 and float16 only (1.31)",
                "PackedMultiHeadAttention",
                dtypes=frozenset({_BF16}),
            ),
            *_contrib(
                "ORT's CUDA EP has kernels in float16 and bfloat16 only (1.31)",
                "QMoE",
                dtypes=frozenset({_F32}),
            ),
            *_q_moe(
                "ORT's documentation of its CUDA kernel has blocks of 64 and 128 for all devices",
                "block_size=16",
                "block_size=32",
                "block_size=256",
            ),
            *_gqa("the kernel of ORT's CUDA EP refuses it (1.31)", "attention_bias"),
        ),
    ),
    EpCapabilities(
        name="dml",
        keeps_function_bodies=False,
        fast_loops=False,
        gqa_dtypes=frozenset({_F16}),
        supports_fused_rope=False,
        supports_fused_moe=False,  # no MoE in DirectML's operator table (ORT 1.24)
        dtypes=frozenset({_F32, _F16}),
        # Cast, Reshape, Shape, Transpose and others end at 21; opset 22 has new ones it lacks.
        max_opset=21,
        runtime_names=RuntimeNames("DmlExecutionProvider", "dml", "enable_graph_capture"),
        lacks=(
            *_standard(
                "not in DirectML's operator table (ORT 1.24)",
                "Attention",
                "Gelu",
                "Loop",
                "RMSNormalization",
                "RotaryEmbedding",
                "Swish",
                "TensorScatter",
            ),
            *_contrib(
                "not in DirectML's operator table (ORT 1.24)",
                "CausalConvWithState",
                "GatherBlockQuantized",
                "LinearAttention",
            ),
            *_gqa(
                "the kernel of ORT's DirectML EP never reads it: wrong numbers without an error",
                "attention_bias",
                "head_sink",
                "local_window_size",
                "softcap",
            ),
        ),
    ),
    EpCapabilities(
        name="webgpu",
        keeps_function_bodies=False,
        fast_loops=False,
        gqa_dtypes=frozenset({_F32, _F16}),
        qkv_pack_dtypes=frozenset({_F32, _F16}),
        supports_fused_matmul=False,  # neither FusedMatMul nor MoE in the plugin EP 0.4
        supports_fused_moe=False,
        default_int4_accuracy_level=4,
        # "basic" is what onnxruntime-genai 0.18 asks for while graph capture is off.
        provider_options={"enableGraphCapture": "0", "validationMode": "basic"},
        runtime_names=RuntimeNames("WebGpuExecutionProvider", "webgpu", "enableGraphCapture"),
        max_buffer_bytes=256 * 2**20,  # what WebGPU guarantees as maxBufferSize
        dtypes=frozenset({_F32, _F16}),
        lacks=(
            *_standard(
                "no kernel in the WebGPU plugin EP 0.4",
                "Attention",
                "Loop",
                "Or",
                "Swish",
                "TensorScatter",
            ),
            *_gqa(
                "the WebGPU plugin EP 0.4 ignores it: wrong numbers on every adapter tried",
                "softcap",
            ),
        ),
    ),
    EpCapabilities(
        name="mlx",
        keeps_function_bodies=False,
        fast_loops=False,
        gqa_dtypes=frozenset({_F32, _F16, _BF16}),
        supports_fused_matmul=False,  # neither FusedMatMul nor MoE in the plugin EP 0.31
        supports_fused_moe=False,
        supports_packed_multi_head_attention=True,
        lacks=(
            *_contrib("not claimed by the MLX plugin EP 0.31", "FastGelu", "QuickGelu"),
            *_gqa("not claimed by the MLX plugin EP 0.31", "head_sink", "softcap"),
            *_gqa(
                "read by the MLX plugin EP 0.31 with a rolling cache only: wrong numbers without "
                "an error",
                "local_window_size",
            ),
            # Rows are told apart by attention_bias instead, which the plugin takes.
            *_gqa(
                "not read by the MLX plugin EP 0.31, which takes every row to be full: wrong "
                "numbers for padded rows without an error",
                "seqlens_k",
            ),
        ),
    ),
    EpCapabilities(
        name="trt-rtx",
        keeps_function_bodies=False,
        gqa_dtypes=frozenset({_F16, _BF16}),
        qkv_pack_dtypes=frozenset({_F16, _BF16}),
        supports_skip_layer_norm=False,
        supports_fused_matmul=False,  # its ONNX parser takes neither FusedMatMul nor MoE
        supports_fused_moe=False,
        provider_options={"enable_cuda_graph": "1"},
        enable_graph_capture=True,
        runtime_names=RuntimeNames(
            "NvTensorRTRTXExecutionProvider", "NvTensorRtRtx", "enable_cuda_graph"
        ),
        lacks=(
            Lack(
                "Attention",
                attribute="present_key",
                reason="TensorRT-RTX's ONNX parser takes Attention with one output only",
            ),
            *_contrib(
                "not taken by TensorRT-RTX's ONNX parser", "BiasGelu", "FastGelu", "QuickGelu"
            ),
            *_contrib(
                "onnxruntime-genai 0.18 gives TensorRT-RTX its integers with DequantizeLinear only",
                "GatherBlockQuantized",
                "MatMulNBits",
            ),
            *_contrib(
                "not known to be taken by TensorRT-RTX's ONNX parser",
                "CausalConvWithState",
                "LinearAttention",
            ),
            *_gqa(
                "not known to be taken by TensorRT-RTX's ONNX parser", "attention_bias", "head_sink"
            ),
        ),
    ),
    # Strict ONNX: no operator outside the standard domain.
    EpCapabilities(
        name="onnx-standard",
        supports_fused_rope=False,
        supports_skip_layer_norm=False,
        supports_fused_matmul=False,
        supports_fused_moe=False,
        allowed_domains=frozenset({STANDARD_DOMAIN}),
        lacks=(
            Lack(
                "Attention",
                attribute="attn_mask",
                input_dtypes=frozenset({ir.DataType.BOOL}),
                reason="tract 0.23.9 adds a boolean mask to the scores",
            ),
        ),
        runtime_names=_CPU_NAMES,
    ),
)
