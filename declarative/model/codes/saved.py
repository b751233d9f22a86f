"""Codes of saved plans."""

from __future__ import annotations

from declarative.model.codes.entry import Chapter, Code

_AGAIN = "plan again: `fleetform plan --out FILE`"

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
    "not-overwritten": Code(
        Chapter.SAVED,
        "`--out` or `--report` names something that fleetform did not write: a link, a folder, another file",
        "`fleetform plan --out main.py`",
        "name another file, or remove this one",
    ),
    "plan-differs": Code(
        Chapter.SAVED,
        "the plan is not the one that `--expect` names: the message says what differs",
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
        _AGAIN + "; or undo the change",
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
        _AGAIN,
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
        _AGAIN,
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
        _AGAIN,
    ),
    "plan-rank-state": Code(
        Chapter.SAVED,
        "the plan relies on a rank that had ended, or that ran, and this is no longer so",
        "one rank of a task was to be started again, and the other has failed since then",
        _AGAIN,
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
