"""Your own runner: anything that answers a prompt, wrapped in one class.

    python own_runner.py                         # check the plug-in against its contract
    pip install -e . && mulligan run job.yaml    # use it in a job, by the kind in pyproject.toml

This one answers from a small phrase book instead of a model.
"""

from collections.abc import Mapping
from typing import Any

from mulligan.policies import Output
from mulligan.tasks.ports.errors import BadInput, RunnerError
from mulligan.tasks.ports.runners import Request

GREETINGS = {"en": "Good morning", "fr": "Bonjour", "de": "Guten Morgen"}


class PhraseBook:
    provider = "phrasebook"  # the fleet keeps one circuit breaker per provider

    def __init__(self, language: str) -> None:
        self.greeting = GREETINGS[language]

    def answer(self, request: Request) -> Output:
        """Raise TransportFault for "ask again later", RunnerError for what cannot be answered."""
        prompt = request.messages[-1].content
        if "greet" not in prompt.lower():
            raise RunnerError("the phrase book has only greetings")
        # A correction is part of the prompt: here it asks for what was missing.
        name = ", Alice" if "Alice" in prompt else ""
        return Output(text=f"{self.greeting}{name}!")


def make(options: Mapping[str, Any]) -> PhraseBook:
    """The entry point: options in, runner out. It must not contact anything yet."""
    language = options.get("language", "en")
    if language not in GREETINGS:
        raise BadInput.at("language", f"{language!r} is none of {', '.join(GREETINGS)}")
    return PhraseBook(language)


if __name__ == "__main__":
    from mulligan.testing import check_runner

    output = check_runner(make({"language": "fr"}), prompt="Greet somebody.")
    print(f"phrasebook keeps the contract of a runner: {output.text}")
