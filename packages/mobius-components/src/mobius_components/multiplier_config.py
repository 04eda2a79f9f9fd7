"""`MultiplierConfig`: fixed factors of what flows between the parts of a layer."""

from __future__ import annotations

import dataclasses

from mobius_components.config_checks import is_finite, unfit


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiplierConfig:
    """Factors of a layer's inputs and outputs, 1 for none.

    Attributes:
        attention_input: Of what attention is given beside a state space (Falcon-H1).
        attention_output: Of what it gives there.
        mamba2_output: Of what the state space gives there.
        mlp_gate: Of the gate of the feed-forward layer, before its activation (Falcon-H1).
        mlp_output: Of what the feed-forward layer gives.
        stream: For each layer, the factors of the stream that attention is added to, and of what is
            added to it; layout `"normed_stream"` (MiniMax).
        mlp_stream: The same two for the feed-forward layer.

    Raises:
        ConfigError: if a factor is not a finite number other than zero.
    """

    attention_input: float = 1.0
    attention_output: float = 1.0
    mamba2_output: float = 1.0
    mlp_gate: float = 1.0
    mlp_output: float = 1.0
    stream: tuple[tuple[float, float], ...] | None = None
    mlp_stream: tuple[float, float] = (1.0, 1.0)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            pairs = value if field.name == "stream" else (value,)
            factors = [
                factor
                for pair in pairs or ()
                for factor in (pair if isinstance(pair, tuple) else (pair,))
            ]
            if not all(is_finite(factor) and factor for factor in factors):
                raise unfit(self, field.name, "finite numbers other than zero")

    def check_model(self, num_hidden_layers: int) -> None:
        """Check what depends on the rest of the model.

        Raises:
            ConfigError: if `stream` has not one entry for each layer.
        """
        if self.stream is not None and len(self.stream) != num_hidden_layers:
            raise unfit(self, "stream", f"{num_hidden_layers} entries, one for each layer")
