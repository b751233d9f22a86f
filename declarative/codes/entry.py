"""What is said of one code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Group(StrEnum):
    """The chapters of `docs/errors.md`, in their order."""

    YAML = "YAML and files"
    LANGUAGE = "The language"
    TEMPLATES = "Templates and variables"
    REFERENCES = "References between documents"
    PLANNING = "Planning"
    PLACEMENT = "Placement"
    STRUCTURAL = "Placement: what no waiting mends"
    CAPACITY = "Placement: what waiting may mend"
    SAVED = "Saved plans"
    STATE = "The state"
    COMMAND = "Commands"

    @property
    def about(self) -> str:
        """The chapter's first paragraph."""
        return _ABOUT[self]


_ABOUT = {
    Group.YAML: "A file cannot be read, or is not YAML of the kind that a project is written in.",
    Group.LANGUAGE: "One document by itself: its type, its fields, their values.",
    Group.TEMPLATES: "What stands between `${{` and `}}`, and the project's variables.",
    Group.REFERENCES: "The documents held against each other: names that exist, names that are given once, "
    "volumes that are mounted once.",
    Group.PLANNING: "The project is right by itself, but does not go with what the backends offer or with "
    "what is recorded.",
    Group.PLACEMENT: "A task is placed with all of its ranks or not at all. One that cannot be placed is "
    "shown under `Cannot be placed` (`unplaced` in JSON) with one of the codes here; the exit code is 3. "
    "For the rank that is the cause, every node and every offer that was turned down is listed with the "
    "first filter that it did not pass, one of the codes of the next two chapters, and with the numbers: "
    "what was wanted, what was there, by how much it fell short (`short` in JSON). Structural reasons, which "
    "no waiting mends, come before those of capacity.",
    Group.STRUCTURAL: "Why a node or an offer is not for this task, whatever else runs: something has to be "
    "declared otherwise. Codes of `rejections` in JSON.",
    Group.CAPACITY: "Why a node or an offer that would suit the task cannot have it now. Codes of "
    "`rejections` in JSON.",
    Group.SAVED: "A plan that `fleetform plan --out FILE` saved is carried out as it is or not at all. With "
    "each of these nothing was done; all that differs is named at once.",
    Group.STATE: "What is recorded cannot be used, or refuses what was asked of it. A command that meets one "
    "of these has changed nothing beyond what it said that it did.",
    Group.COMMAND: "The command was asked for something that it cannot do.",
}


@dataclass(frozen=True, slots=True)
class Code:
    """What it means, what causes it, what to do about it; clauses without a period at their end."""

    group: Group
    meaning: str
    example: str
    fix: str
