"""`fleetform show`."""

from __future__ import annotations

import click

from declarative.cli import pager
from declarative.cli.failure import Failed
from declarative.cli.session import emit, json_option, out_style


@click.command("show")
@click.argument("file", type=click.Path())
@json_option
@click.option("--no-pager", is_flag=True, help="Print a long plan as it is, also on a terminal.")
def command(file: str, *, as_json: bool, no_pager: bool) -> int:
    """Show the plan that `fleetform plan --out FILE` saved, as it was then.

    Reads nothing but the file. With --json it prints what `plan --json` printed.
    """
    from declarative.cli.planfile import read
    from declarative.cli.saved import shown
    from declarative.render.data import plan_json
    from declarative.render.diagnostics import diagnostics_text
    from declarative.render.plan import plan_text

    try:
        saved = read(file)
    except Failed as error:
        error.form = "object" if as_json else "text"
        raise
    if as_json:
        emit(plan_json(saved.plan))
        return 0
    style = out_style()
    found = diagnostics_text(saved.plan.diagnostics, color=style["color"])
    text = shown(saved) + "\n" + found + plan_text(saved.plan, **style)
    pager.show(text, paged=not no_pager, summary=plan_text(saved.plan, summary_only=True, **style))
    return 0
