"""The requests of Instructor, run by `benchmarks.repair_cost` in a separate environment."""

from __future__ import annotations

import sys
from typing import Any

# `uv run --with instructor` installs them.
import instructor  # type: ignore[import-not-found,unused-ignore]
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def main() -> None:
    base_url, retries = sys.argv[1], int(sys.argv[2])
    server = OpenAI(base_url=base_url, api_key="none", max_retries=0)
    client: Any = instructor.from_openai(server, mode=instructor.Mode.JSON)
    try:
        client.chat.completions.create(
            model="fake",
            response_model=Person,
            max_retries=retries,
            messages=[{"role": "user", "content": "Extract the person: 'Alice is 31 years old.'"}],
        )
    except Exception as error:  # its retry error; only the requests count
        print(type(error).__name__)


if __name__ == "__main__":
    main()
