from __future__ import annotations

import onnxruntime_genai as og
import pytest


@pytest.fixture(scope="session", autouse=True)
def no_telemetry() -> None:
    og.disable_telemetry_events()
