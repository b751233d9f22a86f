"""From type hints to JSON Schema and back: the dataclasses of `spec` are the one truth of the language.

`json_schema` writes the JSON Schema of a dataclass, and `validate` runs jsonschema over plain data. `decode`
reads the same data into the dataclass, and reports every problem with its path. Pure: no files, no clock.
"""

from declarative.model.schema.decode import decode, decode_part, encode
from declarative.model.schema.json_schema import DIALECT, document_schema, object_schema, templated, validate
from declarative.model.schema.marks import (
    BadValueError,
    Doc,
    Field,
    InPlace,
    Is,
    Json,
    Problem,
    Syntax,
    fields_of,
    in_place,
    raise_all,
    unquoted,
)

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
    "templated",
    "unquoted",
    "validate",
]
