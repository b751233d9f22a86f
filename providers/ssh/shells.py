"""Login users that get no shell: what answers in its place, in words.

ssh runs each command by the login shell of its user. That may be one that runs none, and a key or sshd may
run another command in its place. Then the login works, and each answer is of something else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from declarative.provider import PermanentError, PermanentKind
from providers.transport import Finished

if TYPE_CHECKING:
    from providers.ssh.host import Host

MARK = b"FLEETFORM"
"""Stands in each answer of our scripts."""
ASKED = ("sh", "-c", "echo FLEETFORM-SHELL")
SECONDS = 20.0
MOST_SHOWN = 120
_SHELLS = (
    (re.compile(rb"not available"), "`nologin`"),
    (re.compile(rb"git-shell|unrecognized command|interactive git shell", re.IGNORECASE), "`git-shell`"),
    (re.compile(rb"restricted"), "a restricted shell (`rbash`)"),
)


def no_shell(host: Host, user: str, answer: Finished) -> PermanentError:
    """The fault of a user for whom `ASKED` gives this answer, without the mark."""
    written = b"\n".join((answer.stdout, answer.stderr)).strip()
    lines = written.decode(errors="replace").splitlines()
    shown = f" (`{lines[0].strip()[:MOST_SHOWN]}`)" if lines else ""
    shell = next((name for form, name in _SHELLS if form.search(written)), None)
    if shell:
        why = f"its login shell is {shell}{shown}"
    elif not lines:
        why = (
            f"its login shell ends with exit code {answer.exit_code} and prints nothing, as `/bin/false` does"
        )
    else:
        why = (
            f"something else answers{shown}: a login shell that is none, or a forced command (`command=` in "
            "its authorized_keys, `ForceCommand` of sshd)"
        )
    hint = (
        f"write another `user:` for this host, or give {user} a shell there: `chsh -s /bin/sh {user}`; if a "
        "command is forced, write a key for which none is (`identity_file:`)"
    )
    summary = f"the user {user} may log in to {host.hostname}, and cannot run commands: {why}"
    return PermanentError(PermanentKind.AUTH, summary, about=host.hostname, hint=hint)
