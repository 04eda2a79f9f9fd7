"""`registry`: what is found, and what is said about the rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mobius.tasks import TASKS
from mobius_eps import MobiusError
from mobius_hf import registry
from mobius_hf.architectures.llama import Llama
from mobius_hf.errors import ArchitectureRegistrationError, UnknownModelTypeError
from mobius_hf.registry import (
    find_architecture,
    register_architecture,
    supported_model_types,
)

CONFIG = Path("folder/config.json")


def test_every_module_holds_the_architecture_that_it_is_called_after() -> None:
    assert {"llama", "mistral", "qwen2", "qwen3"} <= set(supported_model_types())
    assert list(supported_model_types()) == sorted(supported_model_types())
    for model_type in supported_model_types():
        found = find_architecture(model_type, config=CONFIG, has_own_code=False)
        assert found.model_type == model_type
        assert found.task in TASKS


def test_unknown_model_type_lists_and_suggests() -> None:
    with pytest.raises(UnknownModelTypeError) as caught:
        find_architecture("lama", config=CONFIG, has_own_code=False)
    assert str(caught.value) == (
        f"{CONFIG}: unknown model_type 'lama'. Did you mean 'llama'? "
        f"Supported: {', '.join(supported_model_types())}."
    )
    assert isinstance(caught.value, MobiusError)
    assert isinstance(caught.value, ValueError)


def test_missing_model_type() -> None:
    with pytest.raises(UnknownModelTypeError, match=f"{CONFIG} has no 'model_type', which"):
        find_architecture(None, config=CONFIG, has_own_code=False)


@pytest.mark.parametrize("model_type", ["base", "", ".llama", "llama.x", "../llama", "LLAMA", 3])
def test_only_names_of_families_are_imported(model_type: object) -> None:
    with pytest.raises(UnknownModelTypeError, match="unknown model_type"):
        find_architecture(model_type, config=CONFIG, has_own_code=False)


def test_c074_a_checkpoint_with_its_own_code_is_told_so() -> None:
    with pytest.raises(UnknownModelTypeError, match=r"brings Python code of its own \(auto_map\)"):
        find_architecture("custom", config=CONFIG, has_own_code=True)


class Own(Llama):
    model_type = "own-llama"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Own:
    monkeypatch.setattr(registry, "_registered", {})
    architecture = Own()
    register_architecture(architecture)
    return architecture


def test_a_registered_family_is_found(own: Own) -> None:
    assert find_architecture("own-llama", config=CONFIG, has_own_code=False) is own
    assert "own_llama" in supported_model_types()
    with pytest.raises(UnknownModelTypeError, match="Did you mean 'own_llama'"):
        find_architecture("own_lama", config=CONFIG, has_own_code=False)


def test_registering_twice_is_refused_unless_it_is_meant(own: Own) -> None:
    with pytest.raises(ArchitectureRegistrationError, match="'own-llama' is registered already"):
        register_architecture(Own())
    other = Own()
    register_architecture(other, overwrite=True)
    assert find_architecture("own-llama", config=CONFIG, has_own_code=False) is other


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("architecture", "message"),
    [(Llama(), "'llama' is built in"), (Own, "an instance of a subclass of")],
)
def test_what_cannot_be_registered(architecture: Any, message: str) -> None:
    with pytest.raises(ArchitectureRegistrationError, match=message):
        register_architecture(architecture, overwrite=True)


def test_only_the_family_that_is_asked_for_is_imported() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from mobius_hf.registry import find_architecture\n"
        "find_architecture('qwen2', config=Path('c'), has_own_code=False)\n"
        "print(sorted(m for m in sys.modules if m.startswith('mobius_hf.architectures.')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == (
        "['mobius_hf.architectures.base', 'mobius_hf.architectures.qwen2']"
    )
