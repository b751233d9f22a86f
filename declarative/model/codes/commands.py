"""Codes of commands."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

COMMAND: dict[str, Code] = {
    "usage": Code(
        Chapter.COMMAND,
        "the command's arguments cannot be understood",
        "`fleetform logs train/x`",
        "write what the hint shows; `--help` has examples",
    ),
    "unknown-address": Code(
        Chapter.COMMAND,
        "nothing has that address; a warning for an entry of `moved`, `removed` or `limits.protected` that "
        "names nothing, and was probably mistyped",
        "`fleetform state show node/gpu-9`",
        "`fleetform state list` shows what is recorded",
    ),
    "unknown-attempt": Code(
        Chapter.COMMAND,
        "the task has no such attempt, or the state's history does not go back that far",
        "`fleetform logs train --attempt 9`",
        "`fleetform status` shows each rank's last attempt; the message lists those that are remembered",
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
        "a subnet that does not exist",
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
        "the command does not run in a job of GitHub Actions or GitLab CI",
        "`fleetform ci comment plan.md` at a terminal",
        "write the report to a file: `fleetform plan --report plan.md`",
    ),
    "runner-state": Code(
        Chapter.COMMAND,
        "a CI job applies an approved plan, and no state is named",
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
    "not-edited": Code(
        Chapter.COMMAND,
        "`hosts trust` does not write keys into a file: its hosts come from a template or an alias, or it "
        "was changed meanwhile",
        "hosts: ${{ var.hosts }}",
        "write the lines of the message where the hosts come from; or run the command again",
    ),
    "unwritable": Code(
        Chapter.COMMAND,
        "a file cannot be written",
        "`fleetform fmt` in a directory that you may only read",
        "the message quotes the system; make it writable",
    ),
    "internal-error": Code(
        Chapter.COMMAND,
        "`fmt` would have changed what the file means: a fault of fleetform; the file was left as it is",
        "none is known",
        "report it, with the file",
    ),
}
