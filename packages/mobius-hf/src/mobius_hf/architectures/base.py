"""`Architecture`: what a family must say; `DecoderArchitecture`: what most decoders share."""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from onnxscript import nn

from mobius_components import ArchitectureConfig
from mobius_components.config_error import ConfigError
from mobius_components.models import CausalLMModel
from mobius_hf.config import ConfigFields, checkpoint_dtype, require, require_positive
from mobius_hf.field_names import in_words_of_file
from mobius_hf.rope import read_rope
from mobius_hf.stacks import Stack
from mobius_hf.transformers_config import resolve
from mobius_hf.transforms import Transform
from mobius_hf.windows import Windows, same_for_all

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Architecture(abc.ABC):
    """A family: config fields -> `ArchitectureConfig` and module, tensor name -> parameter name.

    Instances have no state.

    Attributes:
        model_type: As `config.json` has it.
        task: Key of `mobius.tasks.TASKS`.
        required: Fields that a file must have, although transformers has a default for them; `|`
            stands between the names that one may have.
        defaults: Values of fields that a file may leave out, where transformers is not asked.
        irrelevant: Fields that do not change what this family computes.
        fixed: Fields with the only value that this family can be built for.
        left_out: Patterns of tensors that no parameter needs, such as stored rotary tables.
        renames: Pattern and replacement, tried in order on a tensor's name; the first that
            matches is applied. Names that match none are kept.
        transforms: What stored tensors must become, by parameter name; the first that fits is
            applied.
        stacks: Parameters of experts that a checkpoint may list one by one.
        further_layers: Checkpoints hold layers past the last one, which predict further tokens.
        embedding: Parameter of the embedding table.
        head: Parameter of the output head.
    """

    model_type: ClassVar[str]
    task: ClassVar[str] = "text-generation"
    required: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = _NOTHING
    irrelevant: ClassVar[frozenset[str]] = frozenset()
    fixed: ClassVar[Mapping[str, object]] = _NOTHING
    left_out: ClassVar[tuple[str, ...]] = ()
    renames: ClassVar[tuple[tuple[str, str], ...]] = ()
    transforms: ClassVar[tuple[Transform, ...]] = ()
    stacks: ClassVar[tuple[Stack, ...]] = ()
    further_layers: ClassVar[bool] = False
    embedding: ClassVar[str] = "model.embed_tokens.weight"
    head: ClassVar[str] = "lm_head.weight"

    @abc.abstractmethod
    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments of `ArchitectureConfig`, except `dtype` and `model_type`."""

    @abc.abstractmethod
    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a new module."""

    def to_config(
        self, raw: Mapping[str, Any], path: Path, *, through_transformers: bool = True
    ) -> ArchitectureConfig:
        """Return the architecture that the config `raw` describes.

        Args:
            raw: Content of `config.json`.
            path: Its path, for messages.
            through_transformers: Take values as transformers resolves them, where it knows the
                `model_type`; else read the file with this family's own `defaults`.

        Raises:
            CheckpointConfigError: naming the field that is missing, unknown or out of range.
        """
        require(raw, self.required, self.model_type, path)
        require_positive(raw, self.required, self.model_type, path)
        fields = ConfigFields(
            raw,
            path=path,
            model_type=self.model_type,
            resolved=resolve(raw, self.model_type, path) if through_transformers else None,
            defaults=self.defaults,
        )
        try:
            config = ArchitectureConfig(
                **self.arguments(fields),
                dtype=checkpoint_dtype(raw, path),
                model_type=self.model_type,
            )
        except ConfigError as error:
            raise in_words_of_file(error, fields) from error
        fields.refuse_unread(self.irrelevant, self.fixed)
        return config

    def parameter_name(self, tensor: str) -> str | None:
        """Return the parameter that `tensor` of a checkpoint is for; `None` if it is left out.

        A name that is a parameter's already stays as it is, and so does one that is not known:
        binding reports it.
        """
        if any(re.search(pattern, tensor) for pattern in self.left_out):
            return None
        for pattern, replacement in self.renames:
            renamed, count = re.subn(pattern, replacement, tensor, count=1)
            if count:
                return renamed
        return tensor

    def is_unused(self, parameter: str, config: ArchitectureConfig) -> bool:
        """Return whether checkpoints may hold `parameter` although the model has none.

        It may be of a layer past the last one, where the family has `further_layers`.
        """
        match = re.match(r"model\.layers\.(\d+)\.", parameter)
        further = match is not None and int(match[1]) >= config.num_hidden_layers
        return self.further_layers and further


class DecoderArchitecture(Architecture):
    """A decoder with rotary positions, RMS norms and a gated feed-forward layer.

    Attributes:
        partial_rotary: The family can rotate a part of each head.
        activation_field: Field that names the activation.
        epsilon_field: Field of the norms' epsilon; `None` if the family has it fixed.
    """

    required: ClassVar[tuple[str, ...]] = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    # Where a family rotates whole heads, transformers reads the factor for some types of rotary
    # scaling and ignores it for others.
    partial_rotary: ClassVar[bool] = False
    activation_field: ClassVar[str] = "hidden_act"
    epsilon_field: ClassVar[str | None] = "rms_norm_eps"
    # Older transformers stored the frequencies, which config.json decides.
    left_out: ClassVar[tuple[str, ...]] = (r"(^|\.)rotary_emb\.inv_freq$",)
    # A checkpoint of the bare model, without its head, has no `model.` in front.
    renames: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"^(?=(?:embed_tokens|layers|norm)\.)", "model."),
    )

    def windows(self, fields: ConfigFields) -> Windows:
        """Return the attention windows; none unless a family has them."""
        return same_for_all(fields, None)

    def rotary(self, fields: ConfigFields, windows: Windows) -> dict[str, Any]:
        """Return the arguments of the rotary embedding, the same for every layer."""
        rope = read_rope(fields, set(windows.layer_types))
        if rope.partial_rotary_factor != 1.0 and not self.partial_rotary:
            raise fields.unfit("partial_rotary_factor", rope.partial_rotary_factor, "1.0")
        return {
            "rope_theta": rope.theta,
            "rope_scaling": rope.scaling,
            "partial_rotary_factor": rope.partial_rotary_factor,
        }

    def feed_forward_size(self, fields: ConfigFields) -> int:
        """Return the width of the feed-forward layer."""
        return fields.integer("intermediate_size")

    def arguments(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments that these families share."""
        windows = self.windows(fields)
        return {
            "vocab_size": fields.integer("vocab_size"),
            "hidden_size": fields.integer("hidden_size"),
            "intermediate_size": self.feed_forward_size(fields),
            "num_hidden_layers": fields.integer("num_hidden_layers"),
            "num_attention_heads": fields.integer("num_attention_heads"),
            "num_key_value_heads": fields.optional_integer("num_key_value_heads"),
            "head_dim": fields.optional_integer("head_dim"),
            "max_position_embeddings": fields.integer("max_position_embeddings"),
            "hidden_act": fields.text(self.activation_field),
            **({"rms_norm_eps": fields.number(self.epsilon_field)} if self.epsilon_field else {}),
            **self.rotary(fields, windows),
            "sliding_window": windows.sliding_window,
            "layer_types": windows.layer_types,
            "tie_word_embeddings": fields.flag("tie_word_embeddings"),
        }

    def make_module(self, config: ArchitectureConfig) -> nn.Module:
        """Return a `CausalLMModel`."""
        return CausalLMModel(config)
