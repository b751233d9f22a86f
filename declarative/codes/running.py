"""Codes of the state and of commands."""

from __future__ import annotations

from declarative.codes.entry import Code, Group

STATE: dict[str, Code] = {
    "bad-url": Code(
        Group.STATE,
        "`--state` or `FLEETFORM_STATE` is not a URL that can be used; a password in it is refused",
        "`--state mysql://…`",
        "write `sqlite:///path/to/state.db`",
    ),
    "no-state": Code(
        Group.STATE,
        "there is no state at that place",
        "a mistyped path in `--state`",
        "`fleetform apply` makes one; mend the path if there should be one",
    ),
    "not-a-state": Code(
        Group.STATE,
        "the file is a database of something else; it was left as it is",
        "`--state sqlite:///shop.db`",
        "name another file",
    ),
    "newer-format": Code(
        Group.STATE,
        "a newer fleetform wrote the state",
        "a colleague has upgraded",
        "use at least the version that the message names",
    ),
    "older-format": Code(
        Group.STATE,
        "an older fleetform wrote the state, and this command does not change it",
        "`fleetform status` right after an upgrade",
        "`fleetform apply` brings it to the new format",
    ),
    "damaged": Code(
        Group.STATE,
        "the state's file cannot be read as what it was",
        "a file that was cut short by a full disk",
        "bring it back from a backup; what exists still carries its tags",
    ),
    "database": Code(
        Group.STATE,
        "the database refused, in its own words",
        "a full disk, or another process that holds the file for long",
        "mend what the message names, and run the command again",
    ),
    "read-only": Code(
        Group.STATE,
        "the state cannot be written",
        "a state of another user",
        "make the file and its directory writable, or name another with `--state`",
    ),
    "constraint": Code(
        Group.STATE,
        "the database refused what contradicts what is recorded: a fault of fleetform",
        "none is known",
        "report it; nothing was written",
    ),
    "locked": Code(
        Group.STATE,
        "another command writes the state",
        "two `fleetform apply` at once",
        "wait for it, or let the command wait: `--lock-timeout 10m`; for a holder that cannot be reached "
        "any more: `fleetform state unlock`",
    ),
    "lock-changed": Code(
        Group.STATE,
        "the lock has another holder than the one that `state unlock` was told to take it from",
        "`fleetform state unlock OWNER` after that command has ended",
        "look again who holds it",
    ),
    "stale-lease": Code(
        Group.STATE,
        "the lock was taken away while the command ran; it writes nothing more",
        "a machine that slept during `apply`",
        "run the command again: what was begun is read back",
    ),
    "double-booking": Code(
        Group.STATE,
        "a block would be reserved twice",
        "two writers at once",
        "run the command again; if it stays, report it",
    ),
    "no-such-block": Code(
        Group.STATE,
        "a block that the node does not have would be reserved",
        "a plan that was made before the node was split anew",
        "plan again",
    ),
    "missing-need": Code(
        Group.STATE,
        "something would be recorded whose needs are not recorded",
        "a rank without its node",
        "plan again; if it stays, report it",
    ),
    "still-needed": Code(
        Group.STATE,
        "something would be forgotten that another record needs",
        "a node with a rank on it",
        "remove first what the message names",
    ),
    "not-recorded": Code(
        Group.STATE,
        "something would be changed that is not recorded",
        "an address that another command has removed",
        "plan again",
    ),
    "exists": Code(
        Group.STATE,
        "something would be recorded a second time",
        "an address that another command has made",
        "plan again",
    ),
    "already-owned": Code(
        Group.STATE,
        "one thing of a backend would belong to two addresses",
        "two volumes with one `volume_id`",
        "remove one of the two",
    ),
    "open-intent": Code(
        Group.STATE,
        "a call to a backend was begun and its result is not known",
        "a command that was killed",
        "run `fleetform apply`: what was begun is read back first",
    ),
    "closed-intent": Code(
        Group.STATE,
        "the result of a call came twice",
        "a command that lost its lock",
        "run the command again",
    ),
}

COMMAND: dict[str, Code] = {
    "usage": Code(
        Group.COMMAND,
        "the command's arguments cannot be understood",
        "`fleetform logs train/x`",
        "write what the hint shows; `--help` has examples",
    ),
    "unknown-address": Code(
        Group.COMMAND,
        "nothing has that address",
        "`fleetform state show node/gpu-9`",
        "`fleetform state list` shows what is recorded",
    ),
    "unknown-rank": Code(
        Group.COMMAND,
        "the task has no such rank",
        "`fleetform logs train/9`",
        "the hint names the ranks",
    ),
    "not-run": Code(
        Group.COMMAND,
        "the task has not run",
        "`fleetform logs train` before `fleetform apply`",
        "the hint names tasks that have",
    ),
    "gone": Code(
        Group.COMMAND,
        "the node of a rank is gone, and its output with it",
        "`fleetform logs train` after its fleet was removed",
        "write what has to outlive a node to a volume",
    ),
    "backend": Code(
        Group.COMMAND,
        "a backend did not do what the command needs",
        "a host that cannot be reached",
        "mend what the message names, and run the command again",
    ),
    "not-approved": Code(
        Group.COMMAND,
        "nobody can be asked for consent",
        "`fleetform apply` in CI",
        "look at the plan, then add `--auto-approve`",
    ),
    "declined": Code(
        Group.COMMAND,
        "the prompt was not answered with `yes`; nothing was done",
        "Enter at the prompt",
        "answer `yes`, or change the project",
    ),
    "not-empty": Code(
        Group.COMMAND,
        "`init` writes only where there are no YAML files",
        "`fleetform init` twice",
        "run `fleetform plan`, or use an empty directory",
    ),
    "stale-schema": Code(
        Group.COMMAND,
        "the committed schemas are not those of this version",
        "`fleetform schema --check` after a field was added",
        "run `fleetform schema --write`",
    ),
    "unwritable": Code(
        Group.COMMAND,
        "a file cannot be written",
        "`fleetform fmt` in a directory that you may only read",
        "the message has the system's own words; make it writable",
    ),
    "internal-error": Code(
        Group.COMMAND,
        "`fmt` would have changed what the file means: a fault of fleetform; the file was left as it is",
        "none is known",
        "report it, with the file",
    ),
}
