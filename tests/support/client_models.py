"""Models for tests of the client: in a module, so that workers can be allowed to import them."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _loud(cls, name: str) -> str:
        if not name.isupper():
            raise ValueError("write the name in capital letters")
        return name


class Outer:
    """Holds a model, and is none."""

    class Inner(BaseModel):
        size: int
