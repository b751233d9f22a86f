"""The documents that users write (docs/language.md), as dataclasses. Pure."""

from declarative.model.spec.backend import Backend, CatalogOffer
from declarative.model.spec.fleet import Fleet, NodeCount
from declarative.model.spec.project import Project, Variable
from declarative.model.spec.task import (
    CreationPolicy,
    Isolation,
    Mount,
    Mounts,
    StartupOrder,
    StopCriteria,
    Task,
)
from declarative.model.spec.values import (
    Blocks,
    Count,
    Duration,
    Env,
    Gpu,
    Memory,
    Name,
    Placement,
    Resources,
    Retry,
    RetryEvent,
    Size,
    SpotPolicy,
    Tags,
)
from declarative.model.spec.volume import Volume

DOCUMENTS: dict[str, type] = {
    "project": Project,
    "backend": Backend,
    "fleet": Fleet,
    "volume": Volume,
    "task": Task,
}
"""The dataclass of each document type (`type:`)."""

__all__ = [
    "DOCUMENTS",
    "Backend",
    "Blocks",
    "CatalogOffer",
    "Count",
    "CreationPolicy",
    "Duration",
    "Env",
    "Fleet",
    "Gpu",
    "Isolation",
    "Memory",
    "Mount",
    "Mounts",
    "Name",
    "NodeCount",
    "Placement",
    "Project",
    "Resources",
    "Retry",
    "RetryEvent",
    "Size",
    "SpotPolicy",
    "StartupOrder",
    "StopCriteria",
    "Tags",
    "Task",
    "Variable",
    "Volume",
]
