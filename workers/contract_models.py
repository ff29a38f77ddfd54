"""pydantic models, and types that pydantic reads, as contracts: imported from allow-listed modules,
or taught by this process.

Importing a module runs its code, so a job may only name a model of a module that the settings
allow. A model that the process itself was given (a client's ``returns=Person``) needs no import:
its jobs carry the key that it was given here.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeGuard

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from mulligan.policies.jobs.job import Job, VerifierSpec
from mulligan.policies.problem import Problem
from mulligan.tasks.ports.errors import BadInput

CONTRACT = "contract.schema"
#: A pydantic model, or any other type that pydantic has a JSON Schema of: ``list[Person]``, a
#: dataclass, a TypedDict.
Model = Any
#: A program may make a model for every job: keep the latest. The jobs of older ones are checked by
#: their JSON Schema alone.
_REMEMBERED = 1024


def is_model(found: Any) -> TypeGuard[type[BaseModel]]:
    """Whether this is a class of a pydantic model: what a job can name."""
    return isinstance(found, type) and issubclass(found, BaseModel)


def schema_of(model: Model) -> dict[str, Any]:
    """The JSON Schema of what a model accepts, or BadInput if it has none."""
    try:
        return model.model_json_schema() if is_model(model) else _adapter(model).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
        name = getattr(model, "__name__", model)
        raise BadInput.at("model", f"{name} has no JSON Schema: {error.message}") from error


def read_as(model: Model, text: str) -> Any:
    """The JSON text as an instance of the model; pydantic's ValidationError if it is none."""
    # As JSON, which is what the answer is: strict models read dates from text in it.
    if is_model(model):
        return model.model_validate_json(text)
    return _adapter(model).validate_json(text)


@lru_cache(maxsize=_REMEMBERED)
def _adapter(model: Model) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def reference_of(model: Model) -> str:
    """How a job names a model: ``package.module:Person``."""
    return f"{model.__module__}:{model.__qualname__}" if isinstance(model, type) else str(model)


def digest_of(schema: Any) -> str:
    """The hash by which a contract is known, whatever the order of its keys."""
    canonical = json.dumps(schema, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class ContractModels:
    """The models that this process may check answers with."""

    def __init__(self, allowed: frozenset[str] = frozenset()) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._by_schema: dict[str, Model] = {}
        #: Each model with the digest of its schema, by its key.
        self._taught: OrderedDict[str, tuple[Model, str]] = OrderedDict()
        #: How many models there were of one name.
        self._namesakes: dict[str, int] = {}

    def contract(self, model: Model) -> dict[str, Any]:
        """The verifier spec of a contract that is also checked by this very model's validators.

        Models of one name and one schema have a key each: in a notebook a class is defined again
        while jobs of the former one run. The first of a name has the same key in every process,
        so that the next run of a program goes on with what the last one left.
        """
        schema = schema_of(model)
        with self._lock:
            key = next((key for key, (known, _) in self._taught.items() if known == model), None)
            if key is None:
                name = reference_of(model)
                number = self._namesakes[name] = self._namesakes.get(name, 0) + 1
                key = name if number == 1 else f"{name}#{number}"
                self._taught[key] = (model, digest_of(schema))
                while len(self._taught) > _REMEMBERED:
                    self._taught.popitem(last=False)
        return {"id": CONTRACT, "schema": schema, "taught": key}

    def teach(self, model: Model) -> None:
        """From now on, contracts with this schema and no key are checked by these validators."""
        self._by_schema[digest_of(schema_of(model))] = model

    def taught(self, digest: str, key: str | None = None) -> Model | None:
        """The model of a contract, if this process was given it."""
        if key is None:
            return self._by_schema.get(digest)
        model, known = self._taught.get(key, (None, ""))
        return model if known == digest else None

    def allows(self, module: str) -> bool:
        """Whether a module is allow-listed, itself or by a package above it."""
        return any(module == name or module.startswith(f"{name}.") for name in self._allowed)

    def load(self, reference: str) -> type[BaseModel]:
        """The model that a job names, or BadInput; nothing that is not allowed is imported."""
        module, _, name = reference.partition(":")
        if not module or not name:
            raise BadInput.at("model", f"{reference!r} is not of the form package.module:Model")
        if not self.allows(module):
            message = (
                f"the module {module!r} is not allow-listed; add it, or a package above it, to"
                " model_modules of the workers' mulligan.toml"
            )
            raise BadInput.at("model", message, "not_allowed")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:  # a module may fail in any way; the message must name it
            reason = f"{type(error).__name__}: {error}"
            raise BadInput.at("model", f"{reference} cannot be imported: {reason}") from error
        if not is_model(found):
            raise BadInput.at("model", f"{reference} is not a pydantic model")
        return found


def complete_contracts(job: Job, models: ContractModels) -> Job:
    """The job with the JSON Schema of each model that it names: what prompts and decoding read."""
    specs = tuple(_completed(spec, models) for spec in job.verifiers)
    return job if specs == job.verifiers else job.model_copy(update={"verifiers": specs})


def _completed(spec: VerifierSpec, models: ContractModels) -> VerifierSpec:
    model = spec.options.get("model")
    if spec.id != CONTRACT or model is None or "schema" in spec.options:
        return spec
    schema = schema_of(models.load(str(model)))
    return VerifierSpec.model_validate({**spec.model_dump(mode="json"), "schema": schema})


def contract_problems(job: Job, models: ContractModels) -> list[Problem]:
    """A model stands for its own schema: one beside it must be the one that we fill in."""
    found = []
    for index, spec in enumerate(job.verifiers):
        model, schema = spec.options.get("model"), spec.options.get("schema")
        if spec.id != CONTRACT or model is None or schema is None:
            continue
        try:
            same = digest_of(schema_of(models.load(str(model)))) == digest_of(schema)
        except BadInput:
            continue  # building the verifier says it
        if not same:
            message = "give either a model or a schema, not both"
            found.append(Problem(message, ("verifiers", index, "model")))
    return found
