"""Plans, statuses, reports and diagnostics as text and as JSON. Nothing here prints, save `Progress`.

Texts end in a newline (or are empty), so print them without one of your own. Whatever comes from
outside is made safe for a terminal; colours are there only when asked for.
"""

from declarative.render.data import (
    diagnostics_json,
    health_json,
    plan_json,
    status_json,
    to_event,
    to_json,
    to_line,
    validate_json,
)
from declarative.render.diagnostics import count_text, diagnostics_text
from declarative.render.plan import plan_text
from declarative.render.progress import Mode, Progress
from declarative.render.records import state_text
from declarative.render.report import ActionResult, notes_json, report_text
from declarative.render.status import status_text
from declarative.render.terminal import is_terminal, use_color, width
from declarative.render.text import clean
from declarative.render.views import FleetView, HostView, NodeView, RankView, StatusView, TaskView, VolumeView

__all__ = [
    "ActionResult",
    "FleetView",
    "HostView",
    "Mode",
    "NodeView",
    "Progress",
    "RankView",
    "StatusView",
    "TaskView",
    "VolumeView",
    "clean",
    "count_text",
    "diagnostics_json",
    "diagnostics_text",
    "health_json",
    "is_terminal",
    "notes_json",
    "plan_json",
    "plan_text",
    "report_text",
    "state_text",
    "status_json",
    "status_text",
    "to_event",
    "to_json",
    "to_line",
    "use_color",
    "validate_json",
    "width",
]
