"""The command as a process of its own: nothing but its own words on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

STORIES = Path(__file__).resolve().parents[1] / "examples" / "stories" / "checkpoint"


def test_stderr_has_json_alone(tmp_path: Path) -> None:
    config = json.loads((STORIES / "config.json").read_text("utf-8"))
    # transformers warns of it while it reads the file.
    config["eos_token_id"] = 999_999
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "TRANSFORMERS_VERBOSITY"}
    command = [sys.executable, "-m", "mobius", "build", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(
        [*command, "--no-weights", "--ep", "cuda", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert json.loads(done.stdout)["ep"] == "cuda"
    told = [each["message"] for each in events if each["event"] == "warning"]
    assert len(told) == 1
    assert told[0].startswith("The package is built in f32, as the checkpoint is, and cuda fuses")
