"""Models for tests of the client, in a module that workers can be allowed to import."""

from __future__ import annotations

from pydantic import BaseModel, Field, field_validator


class Person(BaseModel):
    name: str
    age: int = Field(ge=0)

    @field_validator("name")
    @classmethod
    def _check_capitals(cls, name: str) -> str:
        if not name.isupper():
            raise ValueError("write the name in capital letters")
        return name


class Outer:
    """A class that contains a model but is not one."""

    class Inner(BaseModel):
        size: int
