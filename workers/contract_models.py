"""pydantic models, and other types that pydantic reads, as contracts.

Importing a module runs its code, so a job may only name a model from a module that the settings
allow. A model that this process has registered (a client's ``returns=Person``) needs no import: its
jobs carry the key of the registration.
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
#: A pydantic model, or any other type with a JSON Schema: ``list[Person]``, a dataclass, a
#: TypedDict.
Model = Any
#: Maximum models to keep, the latest: a program may create one for every job. The jobs of older
#: models are checked only by their JSON Schema.
_KEPT = 1024


def is_model(found: Any) -> TypeGuard[type[BaseModel]]:
    """Whether this is a pydantic model class, which a job can name."""
    return isinstance(found, type) and issubclass(found, BaseModel)


def schema_of(model: Model) -> dict[str, Any]:
    """Return the JSON Schema of a model. Raises BadInput if it has none."""
    try:
        return model.model_json_schema() if is_model(model) else _adapter(model).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError) as error:
        name = getattr(model, "__name__", model)
        raise BadInput.at("model", f"{name} has no JSON Schema: {error.message}") from error


def read_as(model: Model, text: str) -> Any:
    """Read JSON as an instance of the model. Raises pydantic's ValidationError."""
    # As JSON, because strict models accept dates as text only in JSON.
    if is_model(model):
        return model.model_validate_json(text)
    return _adapter(model).validate_json(text)


@lru_cache(maxsize=_KEPT)
def _adapter(model: Model) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def reference_of(model: Model) -> str:
    """Return the name of a model in jobs: ``package.module:Person``."""
    return f"{model.__module__}:{model.__qualname__}" if isinstance(model, type) else str(model)


def digest_of(schema: Any) -> str:
    """Return the hash of a schema, whatever the order of its keys."""
    canonical = json.dumps(schema, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


class ContractModels:
    """The models that this process may check answers with."""

    def __init__(self, allowed: frozenset[str] = frozenset()) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._by_schema: dict[str, Model] = {}
        #: Each model with the digest of its schema, by its key.
        self._by_key: OrderedDict[str, tuple[Model, str]] = OrderedDict()
        #: How many models of each name were registered.
        self._numbers: dict[str, int] = {}

    def contract(self, model: Model) -> dict[str, Any]:
        """Register a model and return the verifier spec that also runs its validators.

        Models with the same name and schema get different keys: in a notebook, a class is defined
        again while jobs of the old one run. The first model of a name has the same key in every
        process, so that a program's next run can continue the jobs of the last one.
        """
        schema = schema_of(model)
        with self._lock:
            key = next((key for key, (known, _) in self._by_key.items() if known == model), None)
            if key is None:
                name = reference_of(model)
                number = self._numbers[name] = self._numbers.get(name, 0) + 1
                key = name if number == 1 else f"{name}#{number}"
                self._by_key[key] = (model, digest_of(schema))
                while len(self._by_key) > _KEPT:
                    self._by_key.popitem(last=False)
        return {"id": CONTRACT, "schema": schema, "taught": key}

    def register(self, model: Model) -> None:
        """Run this model's validators for contracts that have its schema and no key."""
        self._by_schema[digest_of(schema_of(model))] = model

    def find(self, digest: str, key: str | None = None) -> Model | None:
        """Return the model of a contract, if this process has registered it."""
        if key is None:
            return self._by_schema.get(digest)
        model, known = self._by_key.get(key, (None, ""))
        return model if known == digest else None

    def allows(self, module: str) -> bool:
        """Whether the settings allow a module or a package above it."""
        return any(module == name or module.startswith(f"{name}.") for name in self._allowed)

    def load(self, reference: str) -> type[BaseModel]:
        """Import the model that a job names. Raises BadInput, without an import if not allowed."""
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
        except Exception as error:  # a module may fail in any way
            reason = f"{type(error).__name__}: {error}"
            raise BadInput.at("model", f"{reference} cannot be imported: {reason}") from error
        if not is_model(found):
            raise BadInput.at("model", f"{reference} is not a pydantic model")
        return found


def complete_contracts(job: Job, models: ContractModels) -> Job:
    """Add the JSON Schemas of the models that a job names, for prompts and decoding."""
    specs = tuple(_complete(spec, models) for spec in job.verifiers)
    return job if specs == job.verifiers else job.model_copy(update={"verifiers": specs})


def _complete(spec: VerifierSpec, models: ContractModels) -> VerifierSpec:
    model = spec.options.get("model")
    if spec.id != CONTRACT or model is None or "schema" in spec.options:
        return spec
    schema = schema_of(models.load(str(model)))
    return VerifierSpec.model_validate({**spec.model_dump(mode="json"), "schema": schema})


def contract_problems(job: Job, models: ContractModels) -> list[Problem]:
    """Find verifiers with a model and a schema that is not the model's own."""
    found = []
    for index, spec in enumerate(job.verifiers):
        model, schema = spec.options.get("model"), spec.options.get("schema")
        if spec.id != CONTRACT or model is None or schema is None:
            continue
        try:
            same = digest_of(schema_of(models.load(str(model)))) == digest_of(schema)
        except BadInput:
            continue  # building the verifier reports it
        if not same:
            message = "give either a model or a schema, not both"
            found.append(Problem(message, ("verifiers", index, "model")))
    return found
