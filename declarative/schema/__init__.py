"""From type hints to JSON Schema and back: the dataclasses of `spec` are the one truth of the language.

`generate` writes the JSON Schema of a dataclass, `decode` reads plain data into it and reports every
problem with its path, `check` runs jsonschema over the same data. Pure: no files, no clock.
"""

from declarative.schema.decode import Problem, decode, decode_part, encode
from declarative.schema.generate import DIALECT, document_schema, object_schema
from declarative.schema.marks import (
    BadValueError,
    Doc,
    Field,
    InPlace,
    Is,
    Json,
    Syntax,
    fields_of,
    in_place,
    raise_all,
)
from declarative.schema.validate import validate

__all__ = [
    "DIALECT",
    "BadValueError",
    "Doc",
    "Field",
    "InPlace",
    "Is",
    "Json",
    "Problem",
    "Syntax",
    "decode",
    "decode_part",
    "document_schema",
    "encode",
    "fields_of",
    "in_place",
    "object_schema",
    "raise_all",
    "validate",
]
