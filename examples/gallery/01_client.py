"""A prompt and a pydantic model in, a checked object out.

    python 01_client.py                 # scripted answers: no model is needed
    RUNNER=local python 01_client.py    # the bundled model, on the CPU

The first scripted answer breaks the validator's rule. Its message becomes part of the next prompt.
"""

import os

from pydantic import BaseModel, field_validator

from mulligan import Client

LOCAL = {"kind": "local"}
SCRIPTED = {
    "kind": "scripted",
    "answers": ['{"name": "Alice", "age": 3}', '{"name": "Alice", "age": 31}'],
}


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def is_grown_up(cls, age: int) -> int:
        if age < 18:
            raise ValueError("must be the age of an adult")
        return age


runner = LOCAL if os.environ.get("RUNNER") == "local" else SCRIPTED

# No broker is configured, so the client does the work itself, on threads of this process.
with Client() as client:
    result = client.run("Extract: 'Alice is 31.'", returns=Person, runner=runner)

print(result.story())
print()
print(f"{result.value!r}, attempts: {len(result.attempts)}, score: {result.score:g}")
