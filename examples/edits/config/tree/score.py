"""Prints what this configuration scores. A stand-in: yours would ask the models."""

import json
import tomllib
from pathlib import Path

found = tomllib.loads(Path("agents.toml").read_text("utf-8"))
small, routing, clerk = found["models"]["small"], found["routing"], found["agents"]["clerk"]
scores = {
    "extraction": 1.0 - small["temperature"] / 2,
    "reasoning": 0.9 if routing["reasoning"] == "large" else 0.5,
    "arithmetic": 0.95 if "calculator" in clerk["tools"] else 0.6,
    "cost": 0.9 if "large" not in routing.values() else 0.5,
}
print(json.dumps({"scores": scores}))
