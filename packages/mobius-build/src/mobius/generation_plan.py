"""`plan_generation`: a package in, how its text decoder is run out, for manifest and runtimes."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from mobius.decoder_graph import DecoderGraph, read_decoder
from mobius.genai import GenaiRefusal, genai_config
from mobius.genai_support import GenaiModel
from mobius.generation import GenerationSettings
from mobius.manifest import GenerationEntry
from mobius.roles import Role
from mobius_components import ArchitectureConfig
from mobius_eps.runtime_names import NAMELESS

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = ["GenerationPlan", "kept_generation", "plan_generation"]

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GenerationPlan:
    """What is written about a text decoder.

    Attributes:
        entry: The manifest's part.
        genai: Content of `genai_config.json`; `None` if onnxruntime-genai cannot run the package.
    """

    entry: GenerationEntry
    genai: dict[str, Any] | None


def plan_generation(package: ModelPackage, filename: str) -> GenerationPlan | None:
    """Return how the decoder of `package` is run.

    Args:
        package: A package.
        filename: File of its graph, relative to the folder.

    Returns:
        `None` if the package is not one text decoder, or its architecture is not known.
    """
    if len(package) != 1 or package.config is None:
        return None
    ((key, model),) = package.items()
    decoder = read_decoder(model)
    # Encoders may have logits too.
    if decoder is None or package.roles[key] != Role.DECODER:
        return None
    context_length = _context_length(package.config, decoder)
    runtime, capabilities = package.runtime_options(), package.capabilities
    genai = genai_config(
        GenaiModel(
            filename=filename,
            decoder=decoder,
            config=package.config,
            settings=package.generation,
            context_length=context_length,
            names=NAMELESS if capabilities is None else capabilities.runtime_names,
            ep=package.ep,
            dtype=package.dtype,
            provider_options={} if runtime is None else runtime.provider_options,
            graph_capture=runtime is not None and runtime.graph_capture,
        )
    )
    refusal = genai.reason if isinstance(genai, GenaiRefusal) else None
    if refusal is not None:
        _logger.info("No genai_config.json: %s", refusal)
    settings = package.generation or GenerationSettings()
    return GenerationPlan(
        GenerationEntry(
            context_length=context_length,
            shared_cache=decoder.shared_cache,
            bos_token_id=settings.bos,
            eos_token_ids=settings.eos,
            pad_token_id=settings.pad,
            search=settings.search,
            recompute_length=_recompute_length(package.config),
            genai_refusal=refusal,
        ),
        None if isinstance(genai, GenaiRefusal) else genai,
    )


def kept_generation(package: ModelPackage) -> GenerationEntry | None:
    """Return what a loaded package's manifest says, as far as it is still so.

    Args:
        package: A package whose architecture is not known.
    """
    entry = package.loaded_generation()
    if entry is None:
        return None
    (model,) = package.values()
    decoder = read_decoder(model)
    refusal = entry.genai_refusal
    if package.capabilities is not None:
        refusal = "it was loaded, and built again for another execution provider."
    shared = decoder is not None and decoder.shared_cache
    return dataclasses.replace(entry, shared_cache=shared, genai_refusal=refusal)


def _recompute_length(config: ArchitectureConfig) -> int | None:
    """Return where LongRoPE's second table begins, if a layer has one."""
    ropes = [config.rope(layer) for layer in range(config.num_hidden_layers)]
    lengths = [
        rope.original_max_position_embeddings
        for rope in ropes
        if rope is not None and rope.rope_type == "longrope"
    ]
    length = min(lengths, default=None)
    return length if length is not None and length < config.max_position_embeddings else None


def _context_length(config: ArchitectureConfig, decoder: DecoderGraph) -> int:
    """Return the longest text that the configuration promises and every table reaches."""
    lengths = [config.max_position_embeddings]
    if decoder.positions is not None:
        lengths.append(decoder.positions)
    return min(lengths)
