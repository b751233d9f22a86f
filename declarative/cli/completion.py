"""`fleetform completion`."""

from __future__ import annotations

import click

INSTALL = {
    "bash": '# add to ~/.bashrc: eval "$(fleetform completion bash)"\n',
    "zsh": '# add to ~/.zshrc: eval "$(fleetform completion zsh)"\n',
    "fish": "# save as ~/.config/fish/completions/fleetform.fish\n",
}


HOW = """\b
bash:  eval "$(fleetform completion bash)"
zsh:   eval "$(fleetform completion zsh)"
fish:  fleetform completion fish > ~/.config/fish/completions/fleetform.fish
"""


@click.command("completion", epilog=HOW)
@click.argument("shell", type=click.Choice(sorted(INSTALL)))
def command(shell: str) -> int:
    """Print the completion script of SHELL: commands, options, addresses, tasks and ranks."""
    from click.shell_completion import get_completion_class

    from declarative.cli import cli
    from declarative.cli.session import emit_text

    found = get_completion_class(shell)
    assert found is not None
    emit_text(INSTALL[shell] + found(cli, {}, "fleetform", "_FLEETFORM_COMPLETE").source())
    return 0
