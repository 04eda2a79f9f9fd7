"""Builds at the same time give the files that they give one after the other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
from pathlib import Path

import pytest
from tests.parity.reference import make_model

import mobius

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
