"""What `import mobius` loads, and that building needs no torch."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "huggingface_hub", "onnxruntime")


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_importing_mobius_loads_nothing_heavy():
    code = f"import sys, mobius; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_a_module_builds_without_torch():
    code = f"""
import sys
sys.modules["torch"] = None  # importing it is an error now
import mobius
config = mobius.ArchitectureConfig(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1,
    num_attention_heads=4)
package = mobius.build_from_module(mobius.models.CausalLMModel(config), config)
print([m for m in {HEAVY!r} if sys.modules.get(m)])
"""
    assert run(code).strip() == "[]"
