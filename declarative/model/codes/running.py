"""Codes of the state and of commands."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

STATE: dict[str, Code] = {
    "bad-url": Code(
        Chapter.STATE,
        "`--state` or `FLEETFORM_STATE` is not a URL that can be used; a user or a password in it is refused",
        "`--state mysql://…`",
        "write `sqlite:///path/to/state.db` or `postgresql://host/database`",
    ),
    "offline-state": Code(
        Chapter.STATE,
        "the project keeps its state on a server, and a command with `--offline` contacts none",
        "state: postgresql://db.example.com/fleet\n… and `fleetform plan --offline`",
        "`fleetform state pull > state.json` where the server can be reached, then `plan --offline --state "
        "state.json`; or `plan --offline --assume-empty`",
    ),
    "state-moved": Code(
        Chapter.STATE,
        "the project names a state that is empty, while its default state holds things: all of them would "
        "be made a second time",
        "`state: postgresql://…` was added to a project that had none",
        "move the state with `state pull` and `state push`, or name the right one with `--state`",
    ),
    "no-state": Code(
        Chapter.STATE,
        "there is no state at that place",
        "a mistyped path in `--state`",
        "`fleetform apply` makes one; if there should be one already, correct the path",
    ),
    "not-a-state": Code(
        Chapter.STATE,
        "the file is a database of something else; it was left as it is",
        "`--state sqlite:///shop.db`",
        "name another file",
    ),
    "no-driver": Code(
        Chapter.STATE,
        "a state in PostgreSQL needs psycopg, an extra that is not installed",
        "`state: postgresql://db/fleet` after `pipx install .`",
        "in a clone: `pipx install --force '.[postgresql]'`; "
        "or in its environment: `pip install 'psycopg[binary]'`",
    ),
    "unreachable": Code(
        Chapter.STATE,
        "the state's server cannot be reached, has stopped, or takes no more connections; a command that "
        "was at work has waited a minute for it",
        "a server that is being restarted, a firewall, a mistyped host",
        "check that it runs and can be reached, and run the command again: what was begun is in the journal",
    ),
    "no-database": Code(
        Chapter.STATE,
        "the server has no database of that name",
        "`state: postgresql://db/flet`",
        "correct the name, or make the database (`createdb`); the first `apply` makes its tables",
    ),
    "not-authenticated": Code(
        Chapter.STATE,
        "the server does not accept this user, or no user is given",
        "a password that has changed",
        "set user and password: PGUSER and PGPASSWORD, `~/.pgpass`, or a service of PGSERVICE",
    ),
    "not-allowed": Code(
        Chapter.STATE,
        "the user lacks a right in the state's database",
        "the first `apply` by a user who may not make tables",
        "ask the database's owner for `GRANT CREATE ON SCHEMA …`, or for what the message names",
    ),
    "tls": Code(
        Chapter.STATE,
        "the server and fleetform do not agree on TLS, or the server's certificate is not trusted",
        "`sslmode=disable` where the server wants TLS; `sslmode=verify-full` without `sslrootcert`",
        "set `sslmode` and `sslrootcert` in the URL, or PGSSLMODE and PGSSLROOTCERT",
    ),
    "busy": Code(
        Chapter.STATE,
        "another process has kept the state's database busy for too long",
        "a backup that holds the file, or a session that holds the lock's row",
        "run the command again; nothing of the last step was recorded",
    ),
    "disk-full": Code(
        Chapter.STATE,
        "the state could not be written: its disk is full",
        "none is needed",
        "make room and run the command again; nothing of the last step was recorded",
    ),
    "disk": Code(
        Chapter.STATE,
        "the state's disk failed while it was read or written",
        "none is needed",
        "look into the system's log, and run the command again",
    ),
    "backup": Code(
        Chapter.STATE,
        "no backup of the state could be made before all of it was to be changed; nothing was changed",
        "a full disk, when an upgrade brings the state to a new format",
        "make room, and make the folder that the message names writable",
    ),
    "newer-format": Code(
        Chapter.STATE,
        "a newer fleetform wrote the state",
        "a colleague has upgraded",
        "install at least the version that the message names",
    ),
    "older-format": Code(
        Chapter.STATE,
        "an older fleetform wrote the state, and this command does not change it",
        "`fleetform status` right after an upgrade",
        "`fleetform apply` brings it to the new format",
    ),
    "damaged": Code(
        Chapter.STATE,
        "the state's file cannot be read, or its records are not those that fleetform wrote",
        "a file that was cut short by a full disk",
        "`fleetform state restore` brings back the newest backup (`state list-backups`); what was made "
        "since then still carries its tags, and the next `plan` finds it",
    ),
    "no-backup": Code(
        Chapter.STATE,
        "there is no backup of the state, or none could be written",
        "a project folder that cannot be written",
        "make `.fleetform/backups` writable, or name a file that `state pull` printed: `state restore FILE`",
    ),
    "database": Code(
        Chapter.STATE,
        "the database refused; the message has its own words",
        "a full disk, or another process that holds the file for long",
        "fix what the message names, and run the command again",
    ),
    "read-only": Code(
        Chapter.STATE,
        "the state cannot be written",
        "a state of another user",
        "make the file and its directory writable, or name another with `--state`",
    ),
    "constraint": Code(
        Chapter.STATE,
        "the database refused a record that contradicts others: a fault of fleetform",
        "none is known",
        "report it; nothing was written",
    ),
    "forge": Code(
        Chapter.COMMAND,
        "GitHub or GitLab does not answer, or not as it should",
        "a fault of the network in a job that runs `fleetform ci comment`",
        "run the job again",
    ),
    "forge-denied": Code(
        Chapter.COMMAND,
        "the job's token may not do what was asked",
        "`fleetform ci approved` in a job without `GITHUB_TOKEN`",
        "give the job a token with the rights that docs/ci.md names",
    ),
    "locked": Code(
        Chapter.STATE,
        "another command writes the state",
        "two `fleetform apply` at once",
        "wait for it, or let the command wait: `--lock-timeout 10m`; if the holder cannot be reached any "
        "more: `fleetform state unlock`",
    ),
    "unknown-digest": Code(
        Chapter.STATE,
        "`fleetform approve` was given a digest of which nothing waits, or of which several begin so",
        "a plan that does something else by now",
        "`fleetform approve` lists what waits: approve that",
    ),
    "lock-changed": Code(
        Chapter.STATE,
        "`state unlock` was told to take the lock from one holder, and now another one holds it",
        "`fleetform state unlock OWNER` after that command has ended",
        "look again at who holds it",
    ),
    "stale-lease": Code(
        Chapter.STATE,
        "the lock was taken away while the command ran; it writes nothing more",
        "a machine that slept during `apply`",
        "run the command again: what was begun is read back",
    ),
    "double-booking": Code(
        Chapter.STATE,
        "a block would be reserved twice",
        "two writers at once",
        "run the command again; if it stays, report it",
    ),
    "no-such-block": Code(
        Chapter.STATE,
        "the plan reserves a block that the node does not have",
        "a plan that was made before the node was split anew",
        "plan again",
    ),
    "missing-need": Code(
        Chapter.STATE,
        "a record needs another one that is not there",
        "a rank without its node",
        "plan again; if it stays, report it",
    ),
    "still-needed": Code(
        Chapter.STATE,
        "a record cannot be forgotten because another one needs it",
        "a node with a rank on it",
        "first remove what the message names; `fleetform state rm --cascade` forgets it too",
    ),
    "not-recorded": Code(
        Chapter.STATE,
        "the thing to change is not recorded",
        "an address that another command has removed",
        "plan again",
    ),
    "exists": Code(
        Chapter.STATE,
        "the thing is recorded already",
        "`fleetform state mv` to a name that something else has",
        "plan again, or choose another name",
    ),
    "already-owned": Code(
        Chapter.STATE,
        "one thing of a backend would belong to two addresses",
        "two volumes with one `volume_id`",
        "remove one of the two",
    ),
    "bad-state": Code(
        Chapter.STATE,
        "the input of `state push` is not what `state pull` prints",
        "a file that was edited by hand, or cut short",
        "pull it again, and push it as it is",
    ),
    "contradiction": Code(
        Chapter.STATE,
        "the state to push contradicts itself; nothing was changed",
        "a file from which somebody removed a node by hand, but not its reservations",
        "run `fleetform state check` where it comes from; remove a record with `fleetform state rm`",
    ),
    "other-lineage": Code(
        Chapter.STATE,
        "the state to push has another lineage than the one that is there; nothing of that one would be "
        "found again",
        "`fleetform state push` in the wrong project",
        "name an empty state with `--state`; `--force` replaces a state that records nothing",
    ),
    "copied-state": Code(
        Chapter.STATE,
        "the project's folder is a copy, and must not change what the original made",
        "`cp -r` of a project, a clone of a repository that holds `.fleetform`, or of a machine",
        "`fleetform state adopt-folder` if this folder is the state's place now; otherwise remove the "
        "copy's `.fleetform`",
    ),
    "older-state": Code(
        Chapter.STATE,
        "the state to push is not newer than the one that is there",
        "a backup, after another apply",
        "compare it with `fleetform state pull`; `--force` pushes it anyway, and keeps a backup",
    ),
    "name-in-use": Code(
        Chapter.STATE,
        "the backend still knows a renamed thing by this name",
        "`fleetform state mv volume/data volume/store`, and then another volume `data`",
        "declare another name, or rename the thing back with the command of the hint",
    ),
    "other-project": Code(
        Chapter.STATE,
        "the state belongs to a project of another `name`: in the wrong folder or shell, what is declared "
        "here would delete what is recorded there",
        "`fleetform -C staging apply` with FLEETFORM_STATE of prod",
        "change into the folder of that project, or name this one's state; after you renamed the project: "
        "`fleetform state adopt-project`",
    ),
    "open-intent": Code(
        Chapter.STATE,
        "a call to a backend was begun and its result is not known",
        "a command that was killed",
        "run `fleetform apply`: what was begun is read back first",
    ),
    "closed-intent": Code(
        Chapter.STATE,
        "the result of a call came twice",
        "a command that lost its lock",
        "run the command again",
    ),
}

COMMAND: dict[str, Code] = {
    "usage": Code(
        Chapter.COMMAND,
        "the command's arguments cannot be understood",
        "`fleetform logs train/x`",
        "write what the hint shows; `--help` has examples",
    ),
    "unknown-address": Code(
        Chapter.COMMAND,
        "nothing has that address",
        "`fleetform state show node/gpu-9`",
        "`fleetform state list` shows what is recorded",
    ),
    "unknown-rank": Code(
        Chapter.COMMAND,
        "the task has no such rank",
        "`fleetform logs train/9`",
        "the hint names the ranks",
    ),
    "unknown-node": Code(
        Chapter.COMMAND,
        "there is no node of that name",
        "`fleetform ssh gpu-9`",
        "the hint names the nodes",
    ),
    "not-running": Code(
        Chapter.COMMAND,
        "the rank does not run, so no command can run beside it",
        "`fleetform exec train/0` after it has ended",
        "`fleetform logs` has what it printed; `fleetform ssh` leads to its node",
    ),
    "not-run": Code(
        Chapter.COMMAND,
        "the task has not run",
        "`fleetform logs train` before `fleetform apply`",
        "the hint names tasks that have",
    ),
    "gone": Code(
        Chapter.COMMAND,
        "the node of a rank is gone, and its output with it",
        "`fleetform logs train` after its fleet was removed",
        "write what has to outlive a node to a volume",
    ),
    "backend": Code(
        Chapter.COMMAND,
        "a backend did not do what the command needs",
        "a host that cannot be reached",
        "fix what the message names, and run the command again",
    ),
    "backend-busy": Code(
        Chapter.COMMAND,
        "an action failed: the backend was asked several times, and did not answer or was busy",
        "a cloud that throttles requests for longer than an action may take",
        "run `fleetform apply` again: it continues where this one ended",
    ),
    "backend-no-capacity": Code(
        Chapter.COMMAND,
        "an action failed: the cloud has no capacity for what was to be launched",
        "a spot market that is sold out",
        "run `fleetform apply` later, or allow more `regions` or `instance_types`",
    ),
    "backend-quota": Code(
        Chapter.COMMAND,
        "an action failed: the account's quota does not allow it",
        "eight GPUs, in an account with a quota of 0",
        "have the quota raised, or declare fewer",
    ),
    "backend-auth": Code(
        Chapter.COMMAND,
        "an action failed: the backend does not allow it with these credentials",
        "a key that may not launch instances",
        "fix the credentials or their rights, and run `fleetform apply` again",
    ),
    "backend-refused": Code(
        Chapter.COMMAND,
        "an action failed: the backend refuses the request",
        "a subnet that is not there",
        "fix what the message names, and run `fleetform apply` again",
    ),
    "action-failed": Code(
        Chapter.COMMAND,
        "an action failed, and the backend is not the cause",
        "a rank needs an environment variable that is not set",
        "fix what the message names, and run `fleetform apply` again",
    ),
    "no-forge": Code(
        Chapter.COMMAND,
        "this is no job of GitHub Actions or GitLab CI",
        "`fleetform ci comment plan.md` at a terminal",
        "write the report to a file: `fleetform plan --report plan.md`",
    ),
    "runner-state": Code(
        Chapter.COMMAND,
        "nobody named a state to a CI job that applies what was approved",
        "`fleetform apply --expect plan.md` in GitHub Actions, where FLEETFORM_STATE is empty",
        "keep the state on a server: `state: postgresql://…` in the project, or FLEETFORM_STATE",
    ),
    "not-approved": Code(
        Chapter.COMMAND,
        "the command has to ask, and there is no terminal to ask on",
        "`fleetform apply` in CI",
        "look at the plan, then add `--auto-approve`",
    ),
    "declined": Code(
        Chapter.COMMAND,
        "the prompt was not answered with `yes`; nothing was done",
        "Enter at the prompt",
        "answer `yes`, or change the project",
    ),
    "not-empty": Code(
        Chapter.COMMAND,
        "`init` needs a directory without YAML files",
        "`fleetform init` twice",
        "run `fleetform plan`, or use an empty directory",
    ),
    "stale-schema": Code(
        Chapter.COMMAND,
        "the committed schemas are not those of this version",
        "`fleetform schema --check` after a field was added",
        "run `fleetform schema --write`",
    ),
    "unwritable": Code(
        Chapter.COMMAND,
        "a file cannot be written",
        "`fleetform fmt` in a directory that you may only read",
        "the message has the system's own words; make it writable",
    ),
    "internal-error": Code(
        Chapter.COMMAND,
        "`fmt` would have changed what the file means: a fault of fleetform; the file was left as it is",
        "none is known",
        "report it, with the file",
    ),
}
