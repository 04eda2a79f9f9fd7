"""`ArchitectureConfig`: the numbers that decide a decoder's graph, checked once, then frozen.

Field names are HuggingFace `config.json` keys wherever HuggingFace has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from mobius_components.activations import ACTIVATIONS
from mobius_components.config_checks import is_finite
from mobius_components.config_error import ConfigError
from mobius_components.frozen_dict import FrozenDict
from mobius_components.latent_attention_config import LatentAttentionConfig
from mobius_components.linear_attention_config import (
    GatedDeltaConfig,
    RgLruConfig,
    ShortConvConfig,
)
from mobius_components.mixture_config import MixtureConfig
from mobius_components.multiplier_config import MultiplierConfig
from mobius_components.per_layer_config import AltUpConfig, PerLayerInputConfig
from mobius_components.query_temperature_config import QueryTemperatureConfig
from mobius_components.rotary_tables import RotaryParameters
from mobius_components.shared_block_config import SharedBlockConfig
from mobius_components.state_space_config import Mamba2Config, MambaConfig

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
CHUNKED_ATTENTION = "chunked_attention"
LATENT_ATTENTION = "latent_attention"
SHORT_CONV = "short_conv"
GATED_DELTA = "gated_delta"
LIGHTNING_ATTENTION = "lightning_attention"
MAMBA = "mamba"
MAMBA2 = "mamba2"
RG_LRU = "rg_lru"
ATTENTION_BESIDE_MAMBA2 = "attention_beside_mamba2"
SHARED_BLOCK_BEFORE_MAMBA2 = "shared_block_before_mamba2"
FEED_FORWARD = "feed_forward"
LAYER_NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        FULL_ATTENTION: (),
        SLIDING_ATTENTION: ("sliding_window",),
        CHUNKED_ATTENTION: ("attention_chunk_size",),
        LATENT_ATTENTION: ("latent_attention",),
        SHORT_CONV: ("short_conv",),
        GATED_DELTA: ("gated_delta",),
        LIGHTNING_ATTENTION: (),
        MAMBA: ("mamba",),
        MAMBA2: ("mamba2",),
        RG_LRU: ("rg_lru",),
        ATTENTION_BESIDE_MAMBA2: ("mamba2",),
        SHARED_BLOCK_BEFORE_MAMBA2: ("mamba2", "shared_blocks"),
        FEED_FORWARD: (),
    }
)
"""What `layer_types` may hold, and the fields that each needs."""
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
ROPE_ALIASES: Mapping[str, str] = MappingProxyType({"su": "longrope", "mrope": "default"})
"""Older names of `ROPE_TYPES`. The positions of text are the same on every axis of `mrope`."""
NORM_TYPES = ("rms", "rms_plain", "layer", "layer_no_bias", "layer_plain")
LAYER_LAYOUTS = (
    "pre_norm",
    "post_norm",
    "norm_after_add",
    "sandwich",
    "parallel",
    "parallel_two_norms",
    "single",
    "normed_stream",
    "gemma3n",
    "gemma4",
)
QK_NORMS = (None, "head", "each_head", "full")
POSITION_EMBEDDINGS = ("rotary", "learned", "alibi", "none")
_FLOAT_DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArchitectureConfig:
    """A decoder-only transformer.

    Attributes:
        vocab_size: Rows of the embedding table and of the head.
        hidden_size: Width of the residual stream.
        embedding_size: Width of the embedding table; `None` means `hidden_size`, and any other has
            projections from and to the residual stream (OPT 350m).
        intermediate_size: Width of the feed-forward layer.
        num_hidden_layers: Number of decoder layers.
        num_attention_heads: Query heads.
        num_key_value_heads: Key and value heads; `None` means as many as query heads.
        head_dim: Width of a head; `None` means `hidden_size / num_attention_heads`.
        max_position_embeddings: Positions that the rotary tables cover.
        hidden_act: Activation of the feed-forward layer, a key of `activations.ACTIVATIONS`, or
            `"xielu"`, which has parameters (Apertus).
        mlp_gated: Feed-forward is `down(act(gate(x)) * up(x))` rather than `down(act(up(x)))`.
        rms_norm_eps: Epsilon of every norm.
        norm_type: `"rms"`, `"layer"` (LayerNorm with bias), `"layer_no_bias"`, or one without
            parameters, `"rms_plain"` or `"layer_plain"`.
        layer_layout: Where the norms of a layer are, a key of `layers.layouts.LAYOUTS`:
            `"pre_norm"` (Llama), `"post_norm"` (OLMo 2), `"norm_after_add"` (OPT 350m),
            `"sandwich"` (Gemma 2), `"parallel"` (attention and feed-forward of one norm, GPT-J),
            `"parallel_two_norms"` (GPT-NeoX), `"single"` (one norm, one mixer, no feed-forward,
            Mamba), `"normed_stream"` (the stream itself is normalised, MiniMax), `"gemma3n"`
            (several streams, see `altup`), `"gemma4"` (as `"sandwich"`, and more).
        embedding_norm: The embedded tokens are normalised (Bloom).
        final_norm: The states after the last layer are normalised.
        rope_theta: Base of the rotary frequencies; `None` means no rotary embedding.
        rope_scaling: HuggingFace rotary scaling parameters with a `rope_type`; `None` for none.
        partial_rotary_factor: Part of a head that rotates.
        rope_interleaved: Rotate pairs `(2i, 2i+1)` (GPT-J) rather than `(i, i + d/2)` (NeoX).
        attention_bias: The query, key and value projections have a bias.
        attention_output_bias: The output projection has a bias.
        mlp_bias: The feed-forward projections have a bias.
        position_embedding: `"rotary"`, `"learned"` (a table of positions added to the tokens',
            GPT-2), `"alibi"` (a slope for each head, Bloom) or `"none"`.
        position_offset: Row of a learned table that position 0 has (OPT).
        alibi_bias_max: Exponent of two that the last slope has (MPT).
        alibi_scale: Factor of the ALiBi bias (Falcon).
        alibi_bfloat16: Positions, slopes and their products are rounded to bfloat16 (Falcon).
        rope_by_layer_type: Rotary parameters (`rope_theta` and scaling) of the layer types that
            differ from the fields above; `None` for a type without rotary embedding.
        rope_layers: Whether each layer rotates; `None` means that all do.
        qk_norm: Norm of queries and keys: `"head"` (over each head, Qwen3), `"each_head"` (the
            same with weights for each head, StableLM), `"full"` (over the whole projection,
            OLMo 2), or `None`.
        qk_norm_type: Kind of that norm, as `norm_type`; with weights for each head it has to be
            `"layer_no_bias"`.
        qk_norm_after_rotary: The norm comes after the rotary embedding (Hunyuan).
        qkv_clip: Queries, keys and values are clipped to `[-c, c]` (MPT, OLMo), after a norm that
            comes before the rotary embedding (OLMoE).
        qk_norm_where_rotating: Layers without a rotary embedding do not have the norm (Llama 4).
        value_norm: Each head of the values is normalised, without weights (Gemma 3n).
        value_is_key: Layer types whose values are their keys before norm and rotation (Gemma 4).
        query_temperature: Queries grow with their position (Ministral 3, Llama 4).
        attention_sinks: The softmax of each head has one more term, learned (GPT-OSS).
        latent_attention: Of the layers of type `latent_attention` (DeepSeek).
        heads_by_layer_type: `num_key_value_heads` and `head_dim` of the layer types that differ
            from the fields above (Gemma 4).
        num_kv_shared_layers: Layers at the end that have no keys and values of their own: they read
            those of the last layer of their type before them (Gemma 3n).
        sliding_window: Tokens that a sliding layer's query sees, itself included.
        layer_types: What mixes tokens in each layer, a key of `LAYER_NEEDS` and of
            `layers.mixers.MIXERS`; `None` means that all layers have `sliding_attention` if
            `sliding_window` is set, and `full_attention` otherwise.
        attention_chunk_size: Tokens of a chunk, which is what the queries of a layer of type
            `chunked_attention` see.
        attn_logit_softcapping: Cap `c` of attention scores, `c * tanh(score / c)`.
        final_logit_softcapping: The same for the logits.
        attention_scale: Factor of the attention scores; `None` means `1 / sqrt(head_dim)`.
        embedding_multiplier: Factor of the embedded tokens, rounded to the build's dtype (Gemma).
        residual_multiplier: Factor of what a layer adds to the residual stream (Granite).
        logits_scaling: Divisor of the logits (Granite).
        lm_head_bias: The output head has a bias.
        tie_word_embeddings: The head is the embedding table.
        intermediate_sizes: Width of the feed-forward layer of each layer, where they differ.
        activation_sparsity: For each layer, the part of the feed-forward layer's gates that are to
            be below zero, 0 for no such cut (Gemma 3n).
        per_layer_input: A vector for each token and layer beside the stream (Gemma 3n, Gemma 4).
        altup: Several residual streams (Gemma 3n).
        moe: Mixture of experts in the feed-forward place; `None` for none.
        attention_gate: What attention gives is multiplied by a sigmoid of its own (Qwen3-Next).
        short_conv: Of the layers of type `short_conv`.
        gated_delta: Of the layers of type `gated_delta`.
        mamba: Of the layers of type `mamba`.
        mamba2: Of the layers that have a Mamba 2.
        rg_lru: Of the layers of type `rg_lru`.
        shared_blocks: Of the layers of type `shared_block_before_mamba2` (Zamba 2).
        multipliers: Factors within layers (Falcon-H1, MiniMax); `None` for none.
        dtype: Element type of the checkpoint.
        model_type: The HuggingFace `model_type`, for messages and the manifest.

    Raises:
        ConfigError: if a value is out of range or two fields contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    hidden_act: str = "silu"
    embedding_size: int | None = None
    mlp_gated: bool = True
    rms_norm_eps: float = 1e-6
    norm_type: str = "rms"
    layer_layout: str = "pre_norm"
    embedding_norm: bool = False
    final_norm: bool = True
    position_embedding: str = "rotary"
    position_offset: int = 0
    alibi_bias_max: float = 8.0
    alibi_scale: float = 1.0
    alibi_bfloat16: bool = False
    rope_theta: float | None = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    partial_rotary_factor: float = 1.0
    rope_interleaved: bool = False
    rope_by_layer_type: Mapping[str, Mapping[str, Any] | None] | None = None
    rope_layers: tuple[bool, ...] | None = None
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str | None = None
    qk_norm_type: str = "rms"
    qk_norm_after_rotary: bool = False
    qkv_clip: float | None = None
    qk_norm_where_rotating: bool = False
    value_norm: bool = False
    value_is_key: tuple[str, ...] = ()
    query_temperature: QueryTemperatureConfig | None = None
    attention_sinks: bool = False
    latent_attention: LatentAttentionConfig | None = None
    heads_by_layer_type: Mapping[str, tuple[int, int]] | None = None
    num_kv_shared_layers: int = 0
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    layer_types: tuple[str, ...] | None = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    attention_scale: float | None = None
    embedding_multiplier: float | None = None
    residual_multiplier: float | None = None
    logits_scaling: float | None = None
    lm_head_bias: bool = False
    tie_word_embeddings: bool = False
    intermediate_sizes: tuple[int, ...] | None = None
    activation_sparsity: tuple[float, ...] | None = None
    per_layer_input: PerLayerInputConfig | None = None
    altup: AltUpConfig | None = None
    moe: MixtureConfig | None = None
    attention_gate: bool = False
    short_conv: ShortConvConfig | None = None
    gated_delta: GatedDeltaConfig | None = None
    mamba: MambaConfig | None = None
    mamba2: Mamba2Config | None = None
    rg_lru: RgLruConfig | None = None
    shared_blocks: SharedBlockConfig | None = None
    multipliers: MultiplierConfig | None = None
    dtype: ir.DataType = ir.DataType.FLOAT
    model_type: str = "custom"

    def __post_init__(self) -> None:
        self._check_types()
        for field in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        ):
            self._check_positive_int(field)
        if self.embedding_size is None:
            self._set("embedding_size", self.hidden_size)
        self._check_positive_int("embedding_size")
        self._resolve_heads()
        self._resolve_rotary()
        self._resolve_layers()
        self._check_temperature()
        self._check_sharing()
        self._check_each_layer()
        if self.moe is not None:
            self.moe.check_model(self.num_hidden_layers, self.hidden_act, self.mlp_gated)
        self._check_choice("hidden_act", (*ACTIVATIONS, "xielu"))
        self._check_choice("norm_type", NORM_TYPES)
        self._check_choice("layer_layout", LAYER_LAYOUTS)
        self._check_choice("qk_norm", QK_NORMS)
        each = self.qk_norm == "each_head"
        self._check_choice("qk_norm_type", ("layer_no_bias",) if each else NORM_TYPES)
        self._check_choice("dtype", _FLOAT_DTYPES)
        for field in (
            "rms_norm_eps",
            "alibi_bias_max",
            "alibi_scale",
            "qkv_clip",
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "attention_scale",
            "embedding_multiplier",
            "residual_multiplier",
            "logits_scaling",
        ):
            value = getattr(self, field)
            if value is not None and (not is_finite(value) or value <= 0):
                raise ConfigError(field, value, "a number above zero, or None where optional")

    def __deepcopy__(self, memo: dict[int, Any]) -> ArchitectureConfig:
        """Return this configuration itself: it is frozen all the way down."""
        return self

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""
        assert self.num_key_value_heads is not None  # resolved in __post_init__
        return self.num_key_value_heads

    @property
    def head_size(self) -> int:
        """Width of a head."""
        assert self.head_dim is not None  # resolved in __post_init__
        return self.head_dim

    @property
    def embedding_width(self) -> int:
        """Width of the embedding table."""
        assert self.embedding_size is not None  # resolved in __post_init__
        return self.embedding_size

    @property
    def rotary_dim(self) -> int:
        """Width of the rotating part of a head."""
        if self.latent_attention is not None:
            return self.latent_attention.qk_rope_head_dim
        return int(self.head_size * self.partial_rotary_factor)

    def heads(self, layer: int) -> tuple[int, int]:
        """Number of key and value heads of `layer`, and width of a head."""
        assert self.layer_types is not None  # resolved in __post_init__
        own = (self.heads_by_layer_type or {}).get(self.layer_types[layer])
        return own or (self.kv_heads, self.head_size)

    def kv_source(self, layer: int) -> int | None:
        """The layer whose keys and values `layer` reads; `None` where it has its own."""
        assert self.layer_types is not None  # resolved in __post_init__
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if layer < first:
            return None
        kind = self.layer_types[layer]
        return max(other for other in range(first) if self.layer_types[other] == kind)

    def feed_forward_size(self, layer: int) -> int:
        """Width of the feed-forward layer of `layer`."""
        sizes = self.intermediate_sizes
        return self.intermediate_size if sizes is None else sizes[layer]

    def window(self, layer: int) -> int | None:
        """Tokens that a query of `layer` sees, itself included; `None` for no limit."""
        assert self.layer_types is not None  # resolved in __post_init__
        return self.sliding_window if self.layer_types[layer] == SLIDING_ATTENTION else None

    def chunk(self, layer: int) -> int | None:
        """Tokens of a chunk of `layer`; `None` where it has none."""
        assert self.layer_types is not None  # resolved in __post_init__
        return self.attention_chunk_size if self.layer_types[layer] == CHUNKED_ATTENTION else None

    def rope(self, layer: int) -> RotaryParameters | None:
        """Rotary parameters of `layer`; `None` where it does not rotate."""
        assert self.layer_types is not None  # resolved in __post_init__
        if self.position_embedding != "rotary" or self.rope_theta is None:
            return None
        if self.rope_layers is not None and not self.rope_layers[layer]:
            return None
        theta, scaling = self.rope_theta, dict(self.rope_scaling or {})
        kind = self.layer_types[layer]
        if self.rope_by_layer_type is not None and kind in self.rope_by_layer_type:
            override = self.rope_by_layer_type[kind]
            if override is None:
                return None
            scaling = dict(override)
            theta = scaling.pop("rope_theta")
        return RotaryParameters(
            dim=self._rotary_dim_of(layer),
            theta=theta,
            max_position_embeddings=self.max_position_embeddings,
            scaling=FrozenDict(scaling),
        )

    def _rotary_dim_of(self, layer: int) -> int:
        if self.latent_attention is not None:
            return self.latent_attention.qk_rope_head_dim
        return int(self.heads(layer)[1] * self.partial_rotary_factor)

    def _set(self, field: str, value: object) -> None:
        object.__setattr__(self, field, value)

    def _check_positive_int(self, field: str) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(field, value, "an integer of at least 1")

    def _check_types(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise ConfigError(field.name, value, "True or False")
            if field.type == "str" and not isinstance(value, str):
                raise ConfigError(field.name, value, "a string")

    def _check_choice(self, field: str, choices: tuple[object, ...]) -> None:
        value = getattr(self, field)
        if value not in choices:
            raise ConfigError(field, value, f"one of {', '.join(map(str, choices))}")

    def _check_temperature(self) -> None:
        temperature = self.query_temperature
        if temperature is None or self.qk_norm is None or not self.qk_norm_after_rotary:
            return
        if not (temperature.without_rotation and self.qk_norm_where_rotating):
            needed = "None, or for layers without rotation, where a later norm would undo it"
            raise ConfigError("query_temperature", temperature, needed)

    def _check_sharing(self) -> None:
        first = self.num_hidden_layers - self.num_kv_shared_layers
        if not 0 <= self.num_kv_shared_layers < self.num_hidden_layers:
            needed = (
                f"at least 0 and less than num_hidden_layers, which is {self.num_hidden_layers}"
            )
            raise ConfigError("num_kv_shared_layers", self.num_kv_shared_layers, needed)
        assert self.layer_types is not None  # resolved before
        for kind in self.layer_types[first:]:
            if kind not in self.layer_types[:first]:
                needed = f"a layer of type {kind} before those that share, which read its keys"
                raise ConfigError("num_kv_shared_layers", self.num_kv_shared_layers, needed)

    def _check_each_layer(self) -> None:
        for field in ("intermediate_sizes", "activation_sparsity"):
            values = getattr(self, field)
            if values is None:
                continue
            self._set(field, tuple(values))
            if len(values) != self.num_hidden_layers:
                needed = f"{self.num_hidden_layers} entries, one for each layer"
                raise ConfigError(field, values, needed)
        if self.multipliers is not None:
            self.multipliers.check_model(self.num_hidden_layers)
        if self.activation_sparsity and not all(0 <= part < 1 for part in self.activation_sparsity):
            raise ConfigError("activation_sparsity", self.activation_sparsity, "parts in [0, 1)")
        if (self.layer_layout == "gemma3n") is not (self.altup is not None):
            raise ConfigError("altup", self.altup, "a value with layer_layout 'gemma3n', else None")

    def _resolve_heads(self) -> None:
        if self.num_key_value_heads is None:
            self._set("num_key_value_heads", self.num_attention_heads)
        self._check_positive_int("num_key_value_heads")
        if self.num_attention_heads % self.kv_heads:
            raise ConfigError(
                "num_key_value_heads",
                self.num_key_value_heads,
                f"a divisor of num_attention_heads, which is {self.num_attention_heads}",
            )
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ConfigError(
                    "head_dim",
                    None,
                    f"a value, because hidden_size, which is {self.hidden_size}, is no multiple of "
                    f"num_attention_heads, which is {self.num_attention_heads}",
                )
            self._set("head_dim", self.hidden_size // self.num_attention_heads)
        self._check_positive_int("head_dim")
        if self.heads_by_layer_type is not None:
            for kind, (heads, size) in self.heads_by_layer_type.items():
                if heads < 1 or self.num_attention_heads % heads or size < 1:
                    needed = f"a divisor of {self.num_attention_heads} and a size above zero"
                    raise ConfigError("heads_by_layer_type", {kind: (heads, size)}, needed)
            self._set("heads_by_layer_type", FrozenDict(self.heads_by_layer_type))

    def _resolve_rotary(self) -> None:
        self._check_choice("position_embedding", POSITION_EMBEDDINGS)
        if self.rope_theta is None and self.position_embedding == "rotary":
            self._set("position_embedding", "none")
        if self.position_embedding != "rotary":
            if self.rope_scaling is not None:
                raise ConfigError("rope_scaling", self.rope_scaling, "None without a rope_theta")
            return
        if not 0 < self.partial_rotary_factor <= 1 or self.rotary_dim % 2 or not self.rotary_dim:
            raise ConfigError(
                "partial_rotary_factor",
                self.partial_rotary_factor,
                f"a factor in (0, 1] that makes an even part of head_dim, which is {self.head_dim}",
            )
        _check_theta("rope_theta", self.rope_theta)
        if self.rope_scaling is not None:
            self._set("rope_scaling", _normalized_scaling("rope_scaling", self.rope_scaling))
        if self.rope_by_layer_type is not None:
            normalized: dict[str, Any] = {}
            for kind, parameters in self.rope_by_layer_type.items():
                if parameters is not None:
                    _check_theta("rope_by_layer_type", parameters.get("rope_theta"))
                    parameters = _normalized_scaling("rope_by_layer_type", parameters)
                normalized[kind] = parameters
            self._set("rope_by_layer_type", FrozenDict(normalized))
        if self.rope_layers is not None and len(self.rope_layers) != self.num_hidden_layers:
            raise ConfigError(
                "rope_layers", self.rope_layers, f"{self.num_hidden_layers} entries, one a layer"
            )

    def _resolve_layers(self) -> None:
        for field in ("sliding_window", "attention_chunk_size"):
            if getattr(self, field) is not None:
                self._check_positive_int(field)
        if self.layer_types is None:
            kind = FULL_ATTENTION if self.sliding_window is None else SLIDING_ATTENTION
            self._set("layer_types", (kind,) * self.num_hidden_layers)
        layer_types = tuple(self.layer_types or ())
        self._set("layer_types", layer_types)
        if len(layer_types) != self.num_hidden_layers:
            raise ConfigError(
                "layer_types", layer_types, f"{self.num_hidden_layers} entries, one for each layer"
            )
        for kind in dict.fromkeys(layer_types):
            if kind not in LAYER_NEEDS:
                raise ConfigError("layer_types", kind, f"{' or '.join(LAYER_NEEDS)} for each layer")
            for needed in LAYER_NEEDS[kind]:
                if getattr(self, needed) is None:
                    raise ConfigError(needed, None, f"a value, because layer_types has {kind}")


def _check_theta(field: str, theta: object) -> None:
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not theta > 0:
        raise ConfigError(field, theta, "a number above zero, or None")


def _normalized_scaling(field: str, parameters: Mapping[str, Any]) -> FrozenDict:
    """Return rotary parameters under their newest names."""
    scaling = dict(parameters)
    rope_type = scaling.get("rope_type", scaling.pop("type", None))
    if rope_type is None:
        if scaling.keys() - {"rope_theta"}:
            raise ConfigError(field, dict(parameters), "a rope_type beside the parameters")
        rope_type = "default"
    scaling["rope_type"] = ROPE_ALIASES.get(rope_type, rope_type)
    if scaling["rope_type"] not in ROPE_TYPES:
        raise ConfigError(field, dict(parameters), f"a rope_type of {', '.join(ROPE_TYPES)}")
    return FrozenDict(scaling)
