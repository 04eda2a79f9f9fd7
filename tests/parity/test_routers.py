"""Routers choose the experts that transformers' routers choose, with the same shares.

Case C030: 64 tokens, 8 experts, a bias that changes what is chosen and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
import transformers
from onnxscript import GraphBuilder
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.jamba.modeling_jamba import JambaTopKRouter
from transformers.models.llama4.modeling_llama4 import Llama4Router
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from mobius_components import MixtureConfig, RouterConfig, set_build_dtype
from mobius_components.layers.router import Router

Array = npt.NDArray[Any]
TOKENS, HIDDEN, EXPERTS = 64, 32, 8

_GROUPS = {
    "n_routed_experts": EXPERTS,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}
_V3 = RouterConfig(
    scoring="sigmoid",
    e_score_correction_bias=True,
    norm_topk_prob=True,
    norm_topk_epsilon=1e-20,
    n_group=4,
    topk_group=2,
    group_score="sum_of_two",
    routed_scaling_factor=2.5,
    float32=True,
)
_V2 = RouterConfig(n_group=4, topk_group=2, routed_scaling_factor=2.5, float32=True)

# Name -> transformers' router, model_type and fields of its config, and our router.
ROUTERS: dict[str, tuple[Any, str, dict[str, Any], RouterConfig]] = {
    "softmax, normalised": (
        *(MixtralTopKRouter, "mixtral", {"num_local_experts": EXPERTS}),
        RouterConfig(norm_topk_prob=True),
    ),
    "softmax": (
        *(Qwen2MoeTopKRouter, "qwen2_moe", {"num_experts": EXPERTS, "norm_topk_prob": False}),
        RouterConfig(),
    ),
    "softmax in another way": (
        *(JambaTopKRouter, "jamba", {"num_experts": EXPERTS}),
        RouterConfig(),
    ),
    "softmax of the chosen, bias": (
        *(GptOssTopKRouter, "gpt_oss", {"num_local_experts": EXPERTS}),
        RouterConfig(scoring="softmax_of_chosen", bias=True),
    ),
    "softmax, corrected": (
        *(Ernie4_5_MoeTopKRouter, "ernie4_5_moe", {"moe_num_experts": EXPERTS}),
        RouterConfig(
            norm_topk_prob=True, norm_topk_min=1e-12, e_score_correction_bias=True, float32=True
        ),
    ),
    "softmax, groups": (
        *(DeepseekV2TopkRouter, "deepseek_v2", {**_GROUPS, "topk_method": "group_limited_greedy"}),
        _V2,
    ),
    "sigmoid, corrected, groups": (
        *(DeepseekV3TopkRouter, "deepseek_v3", {**_GROUPS, "norm_topk_prob": True}),
        _V3,
    ),
    "sigmoid, corrected": (
        *(MiniMaxM2TopKRouter, "minimax_m2", {"num_local_experts": EXPERTS}),
        RouterConfig(scoring="sigmoid", norm_topk_prob=True, e_score_correction_bias=True),
    ),
    "sparsemixer": (
        *(PhimoeTopKRouter, "phimoe", {"num_local_experts": EXPERTS, "router_jitter_noise": 0.3}),
        RouterConfig(scoring="sparsemixer", router_jitter_noise=0.3),
    ),
}
K = {"ernie4_5_moe": {"moe_k": 3}, "phimoe": {"num_experts_per_tok": 2}}


def ours(
    router: RouterConfig, k: int, tokens: Array, weights: dict[str, Array]
) -> tuple[Array, Array]:
    """Return what our router makes of float32 tokens: experts and shares, by expert."""
    moe = MixtureConfig(
        num_experts=EXPERTS, num_experts_per_tok=k, moe_intermediate_size=8, router=router
    )
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="router")
    builder = GraphBuilder(graph)
    x = builder.input("x", ir.DataType.FLOAT, [1, TOKENS, HIDDEN])
    module = Router(HIDDEN, moe)
    set_build_dtype(module, ir.DataType.FLOAT)
    graph.outputs.extend(module(builder.op, x))
    assert {name for name, _ in module.named_parameters()} == weights.keys()
    for name, parameter in module.named_parameters():
        parameter.const_value = ir.tensor(weights[name].reshape(parameter.shape.numpy()))
    model = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    chosen, share = session.run(None, {"x": tokens[None]})
    return by_expert(chosen, share)


def by_expert(chosen: Array, share: Array) -> tuple[Array, Array]:
    """Return the routes of each token in the order of the experts: routers sort them or not."""
    order = np.argsort(chosen, axis=1)
    return np.take_along_axis(chosen, order, 1), np.take_along_axis(share, order, 1)


def tokens_and_weights(module: torch.nn.Module) -> tuple[Array, dict[str, Array]]:
    """Fill a router of transformers; return tokens for it and its weights, by our names."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            corrects = name.endswith("e_score_correction_bias")
            scale = 0.1 if corrects else 1.5 / HIDDEN**0.5
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator))
            weights[name.rpartition(".")[2]] = tensor.numpy().copy()
    tokens = torch.randn((TOKENS, HIDDEN), generator=generator)
    return tokens.numpy(), weights


@pytest.mark.parametrize("name", ROUTERS)
@pytest.mark.parametrize("k", [2, 3])
def test_router(name: str, k: int) -> None:
    kind, model_type, fields, router = ROUTERS[name]
    fields = {"num_experts_per_tok": k, **fields, **K.get(model_type, {})}
    config = transformers.AutoConfig.for_model(model_type, hidden_size=HIDDEN, **fields)
    module = kind(config).eval()
    tokens, weights = tokens_and_weights(module)
    if model_type == "minimax_m2":  # given by the block around the router
        weights["e_score_correction_bias"] = correction = np.linspace(-0.2, 0.2, EXPERTS, dtype="f")
        arguments = (torch.from_numpy(correction),)
    else:
        arguments = ()
    with torch.no_grad():
        _, share, chosen = module(torch.from_numpy(tokens), *arguments)
    expected = by_expert(chosen.numpy(), share.numpy())
    found = ours(router, expected[0].shape[1], tokens, weights)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=2e-6, atol=1e-7)
    assert len(np.unique(found[0])) == EXPERTS
    if router.e_score_correction_bias:
        plain = {**weights, "e_score_correction_bias": np.zeros(EXPERTS, np.float32)}
        uncorrected = ours(router, expected[0].shape[1], tokens, plain)
        assert (uncorrected[0] != found[0]).any(axis=1).mean() > 0.2


def test_llama4() -> None:
    """transformers gives a sigmoid for each expert, zero for those that are not chosen."""
    config = transformers.AutoConfig.for_model(
        "llama4_text", hidden_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=1
    )
    module = Llama4Router(config).eval()
    tokens, weights = tokens_and_weights(module)
    with torch.no_grad():
        scores, _ = module(torch.from_numpy(tokens))
    chosen, share = ours(RouterConfig(scoring="sigmoid"), 1, tokens, weights)
    np.testing.assert_array_equal(chosen[:, 0], scores.numpy().argmax(axis=1))
    np.testing.assert_allclose(share[:, 0], scores.numpy().max(axis=1), rtol=2e-6)
