"""Out-of-tree execution providers: found in distributions, once, and only when needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Mapping

import pytest

from mobius_eps import EpCapabilities, EpPluginError, EpRegistry, MobiusError, UnknownEpError
from mobius_eps.builtin import BUILTIN_EPS
from mobius_eps.discovery import discover

InstallPlugin = Callable[[str, str, str], str]
HEADER = "from mobius_eps import EpCapabilities\n"
GENERATOR = """
def EP():
    yield EpCapabilities(name='npu')
    yield EpCapabilities(name='vpu')
"""
GENERATOR_THAT_FAILS_LATE = """
def EP():
    yield EpCapabilities(name='npu')
    raise OSError('late')
"""


@pytest.fixture
def registry() -> EpRegistry:
    return EpRegistry(BUILTIN_EPS, discover=discover)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("EP = EpCapabilities(name='npu')", {"npu"}),
        ("def EP(): return EpCapabilities(name='npu')", {"npu"}),
        (
            "def EP(): return [EpCapabilities(name='npu'), EpCapabilities(name='vpu')]",
            {"npu", "vpu"},
        ),
        (GENERATOR, {"npu", "vpu"}),
    ],
    ids=["value", "callable", "callable-list", "generator"],
)
def test_what_an_entry_point_may_load_to(
    install_plugin: InstallPlugin, registry: EpRegistry, source: str, names: set[str]
) -> None:
    install_plugin("acme", HEADER + source, "EP")
    assert registry.require("npu") == EpCapabilities(name="npu")
    assert set(registry) == {caps.name for caps in BUILTIN_EPS} | names
    assert len(registry) == 8 + len(names)


def test_given_names_load_no_plugin_and_others_load_it_once(
    install_plugin: InstallPlugin, registry: EpRegistry
) -> None:
    source = HEADER + (
        "calls = []\ndef EP():\n    calls.append(1)\n    return EpCapabilities(name='npu')\n"
    )
    module = install_plugin("acme", source, "EP")
    assert registry.require("cuda").name == "cuda"
    assert "cpu" in registry
    assert repr(registry) == f"EpRegistry({sorted(caps.name for caps in BUILTIN_EPS)})"
    assert module not in sys.modules
    for _ in range(3):
        assert registry.require("npu").name == "npu"
        assert "npu" in registry.names()
        assert registry.get("rocm") is None
    assert sys.modules[module].calls == [1]
    assert "npu" in repr(registry)


def test_import_loads_no_plugin(install_plugin: InstallPlugin) -> None:
    module = install_plugin("acme", "raise RuntimeError('imported')", "EP")
    folder = next(path for path in sys.path if path.endswith("acme"))
    script = (
        f"import sys; sys.path.insert(0, {folder!r})\n"
        "import mobius_eps\n"
        "mobius_eps.get_ep('cuda')\n"
        f"assert {module!r} not in sys.modules\n"
        "try:\n    mobius_eps.get_ep('npu')\n"
        "except mobius_eps.EpPluginError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == (
        "distribution acme 1.2 (entry point acme = acme_plugin:EP) failed to load its execution "
        "provider: RuntimeError: imported\n"
    )


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
        ("import module_that_is_not_there", "ModuleNotFoundError: No module named"),
        ("other = 1", "AttributeError: module 'acme_plugin' has no attribute 'EP'"),
        ("def EP(): raise OSError('no device')", "OSError: no device"),
        (
            "EP = lambda: EpCapabilities(name='NPU')",
            "InvalidCapabilitiesError: EpCapabilities 'NPU': name='NPU' must be",
        ),
        (GENERATOR_THAT_FAILS_LATE, "OSError: late"),
    ],
)
def test_a_broken_plugin_is_named(
    install_plugin: InstallPlugin, registry: EpRegistry, source: str, problem: str
) -> None:
    install_plugin("acme", HEADER + source, "EP")
    for ask in (lambda: registry.require("npu"), registry.names, lambda: len(registry)):
        with pytest.raises(EpPluginError) as caught:
            ask()
        assert str(caught.value).startswith(
            "distribution acme 1.2 (entry point acme = acme_plugin:EP) failed to load its "
            f"execution provider: {problem}"
        )
        assert isinstance(caught.value, MobiusError)
        assert caught.value.__cause__ is not None
    assert registry.require("cuda").name == "cuda"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("EP = {'name': 'npu'}", "str"),
        ("EP = 3", "int"),
        ("def EP(): return None", "NoneType"),
        ("def EP(): return [EpCapabilities(name='npu'), 'vpu']", "str"),
    ],
)
def test_a_plugin_that_brings_something_else_is_named(
    install_plugin: InstallPlugin, registry: EpRegistry, source: str, kind: str
) -> None:
    install_plugin("acme", HEADER + source, "EP")
    with pytest.raises(EpPluginError) as caught:
        registry.names()
    assert str(caught.value) == (
        f"distribution acme 1.2 (entry point acme = acme_plugin:EP) brings a {kind}; an "
        "EpCapabilities is needed, or a callable that returns one or an iterable of them"
    )


def test_a_plugin_cannot_shadow_a_built_in(
    install_plugin: InstallPlugin, registry: EpRegistry
) -> None:
    install_plugin("acme", HEADER + "EP = EpCapabilities(name='cuda')", "EP")
    builtin = registry.require("cuda")
    with pytest.raises(EpPluginError) as caught:
        registry.names()
    assert str(caught.value) == (
        "distribution acme 1.2 (entry point acme = acme_plugin:EP) brings an execution provider "
        "named 'cuda', which is built in; it must use another name"
    )
    assert registry.require("cuda") is builtin


def test_two_plugins_with_one_name_are_both_named(
    install_plugin: InstallPlugin, registry: EpRegistry
) -> None:
    for name in ("acme", "bolt"):
        install_plugin(name, HEADER + "EP = EpCapabilities(name='npu')", "EP")
    with pytest.raises(EpPluginError) as caught:
        registry.names()
    message = str(caught.value)
    assert "distribution acme 1.2" in message
    assert "distribution bolt 1.2" in message
    assert message.endswith("both bring an execution provider named 'npu'; uninstall one of them")


@pytest.mark.parametrize("first", ["register", "discover"])
def test_a_registered_name_goes_before_a_plugin(
    install_plugin: InstallPlugin, registry: EpRegistry, first: str
) -> None:
    """Whatever comes first: which descriptor is found does not depend on the moment."""
    install_plugin("acme", HEADER + "EP = EpCapabilities(name='npu')", "EP")
    mine = EpCapabilities(name="npu", enable_graph_capture=True)
    if first == "discover":
        assert registry.require("npu") != mine
    registry.register(mine)
    assert registry.require("npu") is mine
    assert len(registry) == 9


def test_a_plugin_may_ask_and_register_while_it_loads() -> None:
    registry: EpRegistry

    def find(reserved: Collection[str]) -> Mapping[str, EpCapabilities]:
        assert "cuda" in reserved
        assert registry.require("cuda").name == "cuda"
        with pytest.raises(UnknownEpError):
            registry.require("npu")
        registry.register(EpCapabilities(name="vpu"))
        return {"npu": EpCapabilities(name="npu")}

    registry = EpRegistry(BUILTIN_EPS, discover=find)
    assert registry.require("npu").name == "npu"
    assert {"npu", "vpu"} <= set(registry)


def test_a_failed_search_is_tried_again() -> None:
    results = iter([EpPluginError("broken"), {"npu": EpCapabilities(name="npu")}])

    def find(reserved: Collection[str]) -> Mapping[str, EpCapabilities]:
        result = next(results)
        if isinstance(result, EpPluginError):
            raise result
        return result

    registry = EpRegistry(BUILTIN_EPS, discover=find)
    with pytest.raises(EpPluginError, match="broken"):
        registry.names()
    assert registry.require("npu").name == "npu"
