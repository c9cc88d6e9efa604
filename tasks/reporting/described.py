"""A JSON Schema in which the docstring under each field of a model says what the field is.

pydantic would read the docstrings of a model whenever its module is imported: half of what a stage takes to start.
"""

import ast
import inspect
import itertools
import textwrap
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema


class DescribedSchema(GenerateJsonSchema):
    """To be given to `model_json_schema`."""

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """Return the schema of one model, its fields described."""
        return _describe_fields(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """Return the same of a dataclass."""
        return _describe_fields(super().dataclass_schema(schema), schema["cls"])


def _describe_fields(found: dict[str, Any], kind: type) -> dict[str, Any]:
    for name, text in read_field_docstrings(kind).items():
        if name in found.get("properties", {}):
            found["properties"][name]["description"] = text
    return found


def read_field_docstrings(kind: type) -> dict[str, str]:
    """Return field -> the docstring under it, of the class and of those of ours that it extends."""
    found: dict[str, str] = {}
    for extended in reversed([one for one in kind.__mro__ if one not in (*BaseModel.__mro__, object)]):
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(extended))).body
        assert isinstance(declared, ast.ClassDef)
        for field, below in itertools.pairwise(declared.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found
