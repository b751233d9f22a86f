"""Every stable code that a message can carry. Pure data, below everything else.

`CODES` are those of diagnostics, of errors of the state and of refusals to place a task; `REJECTIONS` are
those by which placement turns down single nodes and offers, which have a name space of their own. A new code
goes into the module of its group, here; `tests/project/test_codes.py` holds the catalogue against the source,
and makes `docs/errors.md` of it.
"""

from declarative.model.codes.commands import COMMAND
from declarative.model.codes.entry import Chapter, Code
from declarative.model.codes.language import LANGUAGE, REFERENCES, TEMPLATES, YAML
from declarative.model.codes.planning import CAPACITY, PLANNING, STRUCTURAL
from declarative.model.codes.state import SAVED, STATE

CODES: dict[str, Code] = {
    **YAML,
    **LANGUAGE,
    **TEMPLATES,
    **REFERENCES,
    **PLANNING,
    **SAVED,
    **STATE,
    **COMMAND,
}
REJECTIONS: dict[str, Code] = {**STRUCTURAL, **CAPACITY}

__all__ = ["CODES", "REJECTIONS", "Chapter", "Code"]
