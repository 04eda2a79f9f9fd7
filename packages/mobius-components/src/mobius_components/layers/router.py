"""Routers: `[B, S, hidden]` -> the experts of each token, and how much each of them counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from mobius_components.mixture_config import MixtureConfig
from mobius_components.parameter import Parameter

_LOWEST = float(ir.DataType.FLOAT.min)


class Routes(NamedTuple):
    """The experts of each token, tokens of all rows one after the other.

    Attributes:
        chosen: int64 `[tokens, k]`.
        share: float32 `[tokens, k]`, not negative.
    """

    chosen: ir.Value
    share: ir.Value


class Router(nn.Module):
    """Chooses experts as `RouterConfig` says. Scores are float32 whatever the tokens are.

    Where choosing by logits and by scores is the same, logits are chosen by, and shares that are
    a softmax divided by its chosen part are the softmax of the chosen logits: fewer nodes, the
    same numbers, and the form that `com.microsoft::MoE` computes itself.
    Source: `transformers` `MixtralTopKRouter` and its like, named in `RouterConfig`.
    """

    def __init__(self, hidden_size: int, moe: MixtureConfig) -> None:
        super().__init__()
        router, float32 = moe.router, ir.DataType.FLOAT
        dtype = float32 if router.float32 else None
        self.weight = Parameter([moe.num_experts, hidden_size], dtype)
        self.bias = Parameter([moe.num_experts], dtype) if router.bias else None
        corrects = router.e_score_correction_bias
        self.e_score_correction_bias = Parameter([moe.num_experts], float32) if corrects else None
        self._moe = moe

    def forward(self, op: OpBuilder, x: ir.Value) -> Routes:
        """Return the routes of the tokens `x`."""
        logits = self._logits(op, x)
        scoring = self._moe.router.scoring
        if scoring == "sparsemixer":
            jitter = self._moe.router.router_jitter_noise
            return _sparsemixer(op, logits, self._moe.num_experts, jitter)
        if scoring == "softmax_of_chosen":
            best, chosen = _top(op, logits, self._moe.num_experts_per_tok)
            return Routes(chosen, op.Softmax(best, axis=-1))
        return self._weigh(op, logits)

    def _logits(self, op: OpBuilder, x: ir.Value) -> Any:
        """Return float32 `[tokens, experts]`."""
        if self._moe.router.float32 and x.dtype != ir.DataType.FLOAT:
            x = op.Cast(x, to=ir.DataType.FLOAT)
        logits = op.MatMul(x, op.Transpose(self.weight, perm=[1, 0]))
        if self.bias is not None:
            logits = op.Add(logits, self.bias)
        logits = op.Reshape(logits, [-1, self._moe.num_experts])
        if self.weight.dtype != ir.DataType.FLOAT:
            logits = op.Cast(logits, to=ir.DataType.FLOAT)
        return logits

    def _weigh(self, op: OpBuilder, logits: ir.Value) -> Routes:
        """Return routes by the softmax or the sigmoid of all logits."""
        router, k = self._moe.router, self._moe.num_experts_per_tok
        sigmoid, normalize = router.scoring == "sigmoid", router.norm_topk_prob
        if self.e_score_correction_bias is None and not router.limits_groups:
            best, chosen = _top(op, logits, k)
            if sigmoid:
                share = op.Sigmoid(best)
            elif normalize and not router.norm_topk_epsilon:
                share, normalize = op.Softmax(best, axis=-1), False
            else:
                share = op.GatherElements(op.Softmax(logits, axis=-1), chosen, axis=1)
        else:
            scores = op.Sigmoid(logits) if sigmoid else op.Softmax(logits, axis=-1)
            _, chosen = _top(op, self._choice(op, scores), k)
            share = op.GatherElements(scores, chosen, axis=1)
        if normalize:
            total = op.ReduceSum(share, [1], keepdims=1)
            if router.norm_topk_min:
                total = op.Max(total, router.norm_topk_min)
            if router.norm_topk_epsilon:
                total = op.Add(total, router.norm_topk_epsilon)
            share = op.Div(share, total)
        if router.routed_scaling_factor != 1.0:
            share = op.Mul(share, router.routed_scaling_factor)
        return Routes(chosen, share)

    def _choice(self, op: OpBuilder, scores: ir.Value) -> Any:
        """Return what experts are chosen by, the lowest number in groups that are left out.

        Source: `transformers` `DeepseekV2TopkRouter`, `DeepseekV3TopkRouter`.
        """
        router, experts = self._moe.router, self._moe.num_experts
        if self.e_score_correction_bias is not None:
            scores = op.Add(scores, self.e_score_correction_bias)
        if not router.limits_groups:
            return scores
        grouped = op.Reshape(scores, [-1, router.n_group, experts // router.n_group])
        if router.group_score == "max":
            worth = op.ReduceMax(grouped, [2], keepdims=0)
        else:
            worth = op.ReduceSum(_top(op, grouped, 2)[0], [2], keepdims=0)
        _, best = _top(op, worth, router.topk_group)
        every_group = op.Constant(value_ints=list(range(router.n_group)))
        is_group = op.Cast(op.Equal(op.Unsqueeze(best, [2]), every_group), to=ir.DataType.INT32)
        kept = op.Cast(op.ReduceSum(is_group, [1], keepdims=0), to=ir.DataType.BOOL)
        limited = op.Where(op.Unsqueeze(kept, [2]), grouped, _LOWEST)
        return op.Reshape(limited, [-1, experts])


def _top(op: OpBuilder, x: ir.Value, k: int) -> tuple[ir.Value, ir.Value]:
    """Return the `k` greatest along the last axis, and where they are."""
    values, places = op.TopK(x, [k], axis=-1, largest=1, sorted=1, _outputs=2)
    return values, places


def _sparsemixer(op: OpBuilder, logits: ir.Value, experts: int, jitter: float) -> Routes:
    """Return two experts, each with its softmax among the logits near its own.

    The second is the best without the first; what is near it is measured among all, and the first
    is left out. Source: `transformers` `sparsemixer` of `modeling_phimoe`, as it is in inference.
    """
    _, chosen = _top(op, logits, 2)
    size = op.Abs(logits)
    every_expert = op.Constant(value_ints=list(range(experts)))
    shares = []
    left = logits
    for index in range(2):
        expert = op.Slice(chosen, [index], [index + 1], [1])
        best = op.GatherElements(logits, expert, axis=1)
        distance = op.Div(op.Sub(best, logits), op.Max(size, best))
        near = op.Where(op.Greater(distance, 2.0 * jitter), _LOWEST, left)
        shares.append(op.GatherElements(op.Softmax(near, axis=-1), expert, axis=1))
        left = op.Where(op.Equal(expert, every_expert), _LOWEST, logits)
    return Routes(chosen, op.Concat(*shares, axis=1))
