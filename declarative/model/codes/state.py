"""Codes of saved plans and of the state."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

_PLAN_AGAIN = "plan again: `fleetform plan --out FILE`"

SAVED: dict[str, Code] = {
    "not-a-plan": Code(
        Chapter.SAVED,
        "the file is not a plan that fleetform saved, or a part of it has the wrong type",
        "`fleetform apply main.yaml`",
        "name a file that `fleetform plan --out FILE` wrote",
    ),
    "not-a-report": Code(
        Chapter.SAVED,
        "`--expect` names neither a digest nor a report of a plan",
        "`fleetform apply --expect plan.txt`",
        "name `sha256:…`, or a report that ends in .md, .html or .json",
    ),
    "not-converted": Code(
        Chapter.SAVED,
        "a document of dstack or SkyPilot that `fleetform import` could not convert without changing what it "
        "means; it is a comment in what was printed, and a warning",
        'resources: {accelerators: "H100:many"}',
        "write the document by hand, from the comment",
    ),
    "not-overwritten": Code(
        Chapter.SAVED,
        "`--out` or `--report` names something that fleetform did not write: a link, a folder, another file",
        "`fleetform plan --out main.py`",
        "name another file, or remove this one",
    ),
    "plan-differs": Code(
        Chapter.SAVED,
        "the plan is neither what `--expect` names nor what is left of that: the message says what differs",
        "a node failed since the pull request was planned, and would be replaced too",
        "look at the new plan, and apply with its digest",
    ),
    "plan-edited": Code(
        Chapter.SAVED,
        "the file's checksum does not match: the file was edited, or damaged",
        "an editor that changed a command in it",
        "change the YAML, and plan again",
    ),
    "plan-files-changed": Code(
        Chapter.SAVED,
        "files that a task sends have changed since the plan was made",
        "`train.py` was edited after `fleetform plan --out FILE`",
        _PLAN_AGAIN + "; or undo the change",
    ),
    "plan-format": Code(
        Chapter.SAVED,
        "another version of fleetform saved the plan, in a format that this one does not carry out",
        "a colleague's newer version",
        "install the version that the message names, or plan again",
    ),
    "plan-gone": Code(
        Chapter.SAVED,
        "a node or volume vanished since the plan was made, or came back",
        "a spot instance that was taken away",
        _PLAN_AGAIN,
    ),
    "plan-key": Code(
        Chapter.SAVED,
        "a key for signing or checking plans cannot be used",
        "`fleetform plan --out FILE --sign ~/.ssh/id_rsa`",
        "use Ed25519 keys: `ssh-keygen -t ed25519`; the private one signs, the public one checks",
    ),
    "plan-node-state": Code(
        Chapter.SAVED,
        "the plan gives work to a node that is no longer ready, or cannot do what the task asks for",
        "a host that went down",
        "wait until it is ready, or plan again",
    ),
    "plan-offer-changed": Code(
        Chapter.SAVED,
        "an offer that the plan launches has changed: its price, its shape, or its number",
        "a spot price that rose",
        _PLAN_AGAIN,
    ),
    "plan-other-state": Code(
        Chapter.SAVED,
        "the plan was made for another state",
        "`fleetform apply FILE` in another project",
        "run it in the project's directory, or name its state with `--state`",
    ),
    "plan-outdated": Code(
        Chapter.SAVED,
        "what is recorded has changed since the plan was made; a plan that was applied is outdated by itself",
        "another `fleetform apply` in the meantime",
        _PLAN_AGAIN,
    ),
    "plan-rank-state": Code(
        Chapter.SAVED,
        "the plan relies on a rank that had ended, or that ran, and this is no longer so; or a rank that it "
        "lets run on has used up its new `max_duration` by now",
        "one rank of a task was to be started again, and the other has failed since then",
        _PLAN_AGAIN,
    ),
    "plan-signature": Code(
        Chapter.SAVED,
        "the signature of the saved plan is not valid: another key made it, or the plan was changed since",
        "a plan that was edited on its way from the review",
        "plan again, review the plan, and let an allowed key sign it",
    ),
    "plan-unsigned": Code(
        Chapter.SAVED,
        "a policy, or the caller, requires a signature, and the saved plan has none",
        "`fleetform apply FILE --signed-by team.pub` without a FILE.sig",
        "`fleetform plan --out FILE --sign KEY`, or `ssh-keygen -Y sign -n fleetform-plan -f KEY FILE`",
    ),
    "plan-recovered": Code(
        Chapter.SAVED,
        "a command was cut short after the plan was made, and had made something",
        "a killed `fleetform apply`",
        "`fleetform apply` records it; or plan again",
    ),
}
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
        "check that it runs and can be reached, and run the command again: the journal has what was started",
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
        "`fleetform state restore` restores the newest backup (`state list-backups`); what was made "
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
        "the database refused the request; the message quotes it",
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
        "no waiting plan has the digest that `fleetform approve` was given, or several digests begin with it",
        "the digest of a plan that has changed since",
        "`fleetform approve` lists the plans that wait: approve one of them",
    ),
    "git-failed": Code(
        Chapter.STATE,
        "`fleetform reconcile --git` cannot use a repository, a branch or a commit",
        "a branch that does not exist, a login that has lapsed",
        "as the message says; meanwhile the last usable commit stays in force",
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
        "run the command again: it first reads back what was started",
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
        "a record needs another one that does not exist",
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
        "the state to push has another lineage than the existing one; fleetform would lose track of "
        "everything that the state there records",
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
        "the state to push is not newer than the existing one",
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
        "a call to a backend was started, and its result is not known",
        "a command that was killed",
        "run `fleetform apply`: it first reads back what was started",
    ),
    "closed-intent": Code(
        Chapter.STATE,
        "the result of a call came twice",
        "a command that lost its lock",
        "run the command again",
    ),
}
