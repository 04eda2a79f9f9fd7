"""Builds at the same time give the files that they give one after the other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import hashlib
from pathlib import Path

import pytest
from tests.parity.reference import make_model

import mobius
from mobius.errors import PackageSaveError

TARGETS = (("cpu", "f32"), ("cuda", "f16"), ("onnx-standard", "f32"), ("dml", "f16"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_model("qwen2").save_pretrained(folder)
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def build(checkpoint: Path, out: Path, ep: str, dtype: str) -> dict[str, str]:
    mobius.build(checkpoint, execution_provider=ep, dtype=dtype).save(out)
    return digests(out)


@pytest.fixture(scope="module")
def expected(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("sequential")
    return [build(checkpoint, out / ep, ep, dtype) for ep, dtype in TARGETS]


def test_threads(checkpoint, expected, tmp_path):
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        jobs = [pool.submit(build, checkpoint, tmp_path / ep, ep, dtype) for ep, dtype in TARGETS]
        assert [job.result() for job in jobs] == expected


def test_asyncio_tasks(checkpoint, expected, tmp_path):
    async def one(ep: str, dtype: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return await asyncio.to_thread(build, checkpoint, tmp_path / ep, ep, dtype)

    async def every() -> list[dict[str, str]]:
        return await asyncio.gather(*(one(ep, dtype) for ep, dtype in TARGETS))

    assert asyncio.run(every()) == expected


def test_other_families_while_providers_register(checkpoint, tmp_path):
    """Families share rules and tables, and a registry that grows meanwhile."""
    other = tmp_path / "mamba"
    make_model("mamba").save_pretrained(other)
    jobs = ((checkpoint, "webgpu"), (other, "cpu"), (checkpoint, "mlx"), (other, "default"))

    def one(index: int, run: str) -> dict[str, str]:
        folder, ep = jobs[index]
        package = mobius.build(folder, execution_provider=ep, dtype="f32", quantize="int4")
        package.save(tmp_path / f"{run}-{index}")
        return digests(tmp_path / f"{run}-{index}")

    def register(index: int) -> None:
        own = dataclasses.replace(mobius.get_ep("cpu"), name=f"test-concurrency-{index}")
        mobius.register_ep(own)

    alone = [one(index, "alone") for index in range(len(jobs))]
    with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
        found = [pool.submit(one, index, "together") for index in range(len(jobs))]
        for done in [pool.submit(register, index) for index in range(50)]:
            done.result()
        assert [each.result() for each in found] == alone


def test_one_package_is_saved_by_several_threads(checkpoint, tmp_path):
    package = mobius.build(checkpoint, execution_provider="cpu", quantize="int4")

    def save(name: str, overwrite: bool) -> dict[str, str]:
        package.save(tmp_path / name, overwrite=overwrite)
        return digests(tmp_path / name)

    expected = save("alone", overwrite=False)
    with concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
        beside = [pool.submit(save, f"out{index}", overwrite=False) for index in range(3)]
        assert [each.result() for each in beside] == [expected] * 3
        same = [pool.submit(package.save, tmp_path / "same", overwrite=True) for _ in range(4)]
        failures = [each.exception() for each in same if each.exception() is not None]
    # Whoever comes second may find the folder there, or gone; it is whole whatever happens.
    assert len(failures) < 4
    assert {type(failure) for failure in failures} <= {PackageSaveError}
    assert digests(tmp_path / "same") == expected
    assert [path.name for path in tmp_path.glob(".*")] == []
