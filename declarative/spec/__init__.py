"""The words users write: the documents of docs/language.md as dataclasses. Pure."""

from declarative.spec.backend import Backend, CatalogOffer
from declarative.spec.fleet import Fleet, Nodes, SpotPolicy
from declarative.spec.mounts import Mount, Mounts, Volume
from declarative.spec.project import Project, Variable
from declarative.spec.retry import Retry, RetryEvent
from declarative.spec.task import CreationPolicy, Isolation, StartupOrder, StopCriteria, Task
from declarative.spec.text import Env, Name, Tags
from declarative.spec.values import Blocks, Count, Duration, Gpu, Memory, Resources, Size

DOCUMENTS: dict[str, type] = {
    "project": Project,
    "backend": Backend,
    "fleet": Fleet,
    "volume": Volume,
    "task": Task,
}
"""Document type (`type:`) to its dataclass."""

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
    "Nodes",
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
