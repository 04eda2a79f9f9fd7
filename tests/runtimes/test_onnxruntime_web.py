"""onnx-standard packages give the right logits on onnxruntime-web's wasm backend under Node.

Needs Node, and in the environment `MOBIUS_ONNXRUNTIME_WEB`, a folder in which `npm install` has put
onnxruntime-web: `nox -s "runtimes(onnxruntime_web)"`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.runtimes.decoder import Run
from tests.runtimes.reference import FAMILIES, check

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("web_session.mjs")


@contextlib.contextmanager
def load(path: Path) -> Iterator[Run]:
    node, folder = shutil.which("node"), os.environ.get("MOBIUS_ONNXRUNTIME_WEB")
    if node is None or folder is None:
        pytest.skip("needs node, and MOBIUS_ONNXRUNTIME_WEB, a folder with onnxruntime-web")
    command = [node, SCRIPT, Path(folder).resolve(), path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdin is not None
        assert it.stdout is not None

        def run(feed):
            print(json.dumps({name: to_json(each) for name, each in feed.items()}), file=it.stdin)
            it.stdin.flush()
            outputs = json.loads(it.stdout.readline())
            return {name: to_array(each) for name, each in outputs.items()}

        yield run
        it.stdin.close()


def to_json(array):
    data = base64.b64encode(array.tobytes()).decode()
    return {"type": array.dtype.name, "dims": array.shape, "data": data}


def to_array(tensor):
    data = base64.b64decode(tensor["data"])
    return np.frombuffer(data, tensor["type"]).reshape(tensor["dims"])


@pytest.mark.parametrize("opset", [24, 17])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(model_for, reference_for, measured, family, dtype, opset):
    path = model_for(family, dtype, opset=opset)
    with load(path) as run:
        largest = check(path, run, reference_for(family, dtype), ["right", "left"])
    measured(dtype, largest)
