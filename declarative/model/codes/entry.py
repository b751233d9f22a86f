"""One entry of the catalogue of codes."""

from __future__ import annotations

from enum import StrEnum

from declarative.model.record import struct


class Chapter(StrEnum):
    """The chapters of `docs/errors.md`, in their order."""

    YAML = "YAML and files"
    LANGUAGE = "The language"
    TEMPLATES = "Templates and variables"
    REFERENCES = "References between documents"
    PLANNING = "Planning"
    PLACEMENT = "Placement"
    STRUCTURAL = "Placement: waiting does not help"
    CAPACITY = "Placement: waiting may help"
    SAVED = "Saved plans"
    STATE = "The state"
    COMMAND = "Commands"

    @property
    def about(self) -> str:
        """The chapter's first paragraph."""
        return _ABOUT[self]


_ABOUT = {
    Chapter.YAML: "A file cannot be read, or is not YAML of the kind that a project is written in.",
    Chapter.LANGUAGE: "One document by itself: its type, its fields, their values.",
    Chapter.TEMPLATES: "The text between `${{` and `}}`, and the project's variables.",
    Chapter.REFERENCES: "The documents compared with each other: names that exist, names that are used once, "
    "volumes that are mounted once.",
    Chapter.PLANNING: "The project is right by itself, but does not fit what the backends offer or what is "
    "recorded.",
    Chapter.PLACEMENT: "A task is placed with all of its ranks or not at all. A task that cannot be placed "
    "is shown under `Cannot be placed` (`unplaced` in JSON) with one of these codes, and the exit code is 3 "
    "(not with `allow_unplaced`, nor if the task waits for the `schedule` of a fleet). "
    "For the rank that is the cause, the plan lists every node and every offer that was turned down, with "
    "the first filter that it did not pass (one of the codes of the next two chapters) and with the numbers: "
    "what was wanted, what was there, and how much was missing (`short` in JSON). Structural reasons come "
    "before those of capacity.",
    Chapter.STRUCTURAL: "Why a node or an offer never suits this task, whatever else runs: the declaration "
    "has to change. These are codes of `rejections` in JSON.",
    Chapter.CAPACITY: "Why a node or an offer that would suit the task cannot take it now. These are codes "
    "of `rejections` in JSON.",
    Chapter.SAVED: "A plan that `fleetform plan --out FILE` saved is carried out as it is or not at all. "
    "With each of these codes nothing was done; all differences are named at once.",
    Chapter.STATE: "The state cannot be used, or refuses what was asked of it. A command that meets one of "
    "these codes has changed nothing beyond what it said it did.",
    Chapter.COMMAND: "The command cannot do what it was asked for.",
}


@struct(frozen=True, slots=True)
class Code:
    """What it means, what causes it, what to do about it; clauses without a period at their end."""

    group: Chapter
    meaning: str
    example: str
    fix: str
