"""A backend's `credentials`: where secrets are, never what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from declarative.schema import BadValueError, Json, raise_all

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Credentials(dict[str, str]):
    """What the driver calls a credential → the environment variable that holds it; never its value."""

    __slots__ = ()
    HINT: ClassVar[str] = (
        "write the name of an environment variable, such as `key: AWS_ACCESS_KEY_ID`; the secret goes there"
    )

    @classmethod
    def parse(cls, value: Json) -> Self:
        """`bad-credential` for anything but names of variables. The value itself is not shown: it may be
        the secret.
        """
        if not isinstance(value, Mapping):
            raise BadValueError("wrong-type", "expected a mapping", cls.HINT)
        faults: list[BadValueError] = []
        for key, item in value.items():
            if not isinstance(item, str) or not _VARIABLE.fullmatch(item):
                summary = f"the value of `{key}` is not the name of an environment variable"
                faults.append(BadValueError("bad-credential", summary, cls.HINT, (key,), at_key=True))
        raise_all(faults)
        return cls({str(k): str(v) for k, v in value.items()})

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A mapping of names."""
        return {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": f"^{_VARIABLE.pattern}$"},
        }

    def plain(self) -> Json:
        """A mapping, sorted by key."""
        return dict(sorted(self.items()))
