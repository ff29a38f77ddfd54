"""Several questions at once from a notebook, each answer shown as soon as it arrives.

    python 02_notebook.py                 # scripted answers: no model is needed
    RUNNER=local python 02_notebook.py    # the bundled model, on the CPU

The `# %%` lines are cells: VS Code, PyCharm, Spyder and Jupytext open this file as a notebook.
"""

# %% What we want to know about each review
import asyncio
import os
from typing import Any, Literal

from pydantic import BaseModel

from mulligan import AsyncClient


class Review(BaseModel):
    sentiment: Literal["positive", "negative"]


# %% The reviews, each with what a model could answer, by attempt
REVIEWS = {
    "The battery died after two days.": ['{"sentiment": "negative"}'],
    "Five stars, would buy again.": ['{"sentiment": "great"}', '{"sentiment": "positive"}'],
    "It does what it should.": ["It sounds positive.", '{"sentiment": "positive"}'],
}


def runner(text: str) -> dict[str, Any]:
    if os.environ.get("RUNNER") == "local":
        return {"kind": "local"}
    return {"kind": "scripted", "answers": REVIEWS[text]}


# %% Ask about one
async def classify(client: AsyncClient, text: str) -> None:
    prompt = f"Classify the sentiment of this review: {text!r}"
    result = await client.run(prompt, returns=Review, runner=runner(text))
    print(f"{result.value.sentiment:8}  attempt {len(result.attempts)}  {text}")


# %% Ask about all of them at the same time
async def main() -> None:
    async with AsyncClient() as client:
        await asyncio.gather(*(classify(client, text) for text in REVIEWS))


# %% A notebook's event loop is already running, so the answers appear below as they arrive
try:
    loop = asyncio.get_running_loop()
except RuntimeError:
    asyncio.run(main())
else:
    asking = [loop.create_task(main())]
