"""Codes of saved plans."""

from __future__ import annotations

from declarative.codes.entry import Code, Group

_AGAIN = "plan again: `fleetform plan --out FILE`"

SAVED: dict[str, Code] = {
    "not-a-plan": Code(
        Group.SAVED,
        "the file is no plan that fleetform saved, or something in it is not of its kind",
        "`fleetform apply main.yaml`",
        "name a file that `fleetform plan --out FILE` wrote",
    ),
    "not-overwritten": Code(
        Group.SAVED,
        "`--out` names something that is no plan of fleetform: a link, a directory, or somebody's work",
        "`fleetform plan --out main.py`",
        "name another file, or remove that one",
    ),
    "plan-edited": Code(
        Group.SAVED,
        "the file's checksum does not match: it was edited, or damaged on its way",
        "an editor that changed a command in it",
        "change the YAML, and plan again",
    ),
    "plan-files-changed": Code(
        Group.SAVED,
        "files that a task gets are not as they were when the plan was made",
        "`train.py` was edited after `fleetform plan --out FILE`",
        _AGAIN + "; or undo the change",
    ),
    "plan-format": Code(
        Group.SAVED,
        "another version of fleetform saved the plan, in a format that this one does not carry out",
        "a colleague's newer version",
        "install the version that the message names, or plan again",
    ),
    "plan-gone": Code(
        Group.SAVED,
        "a node or volume vanished since the plan was made, or is there again",
        "a spot instance that was taken away",
        _AGAIN,
    ),
    "plan-key": Code(
        Group.SAVED,
        "a key to sign plans with, or to check them by, is none that can be used",
        "`fleetform plan --out FILE --sign ~/.ssh/id_rsa`",
        "use Ed25519 keys: `ssh-keygen -t ed25519`; the private one signs, the public one checks",
    ),
    "plan-node-state": Code(
        Group.SAVED,
        "a node to which the plan gives work is not ready any more, or cannot do what the task asks of it",
        "a host that went down",
        "wait until it is ready, or plan again",
    ),
    "plan-offer-changed": Code(
        Group.SAVED,
        "what the plan launches is not offered as it was: its price, its shape, or how many there are",
        "a spot price that rose",
        _AGAIN,
    ),
    "plan-other-state": Code(
        Group.SAVED,
        "the plan was made for another state than the one at hand",
        "`fleetform apply FILE` in another project",
        "run it in the project's directory, or name its state with `--state`",
    ),
    "plan-outdated": Code(
        Group.SAVED,
        "what is recorded has changed since the plan was made; a plan that was applied is outdated by itself",
        "another `fleetform apply` in the meantime",
        _AGAIN,
    ),
    "plan-rank-state": Code(
        Group.SAVED,
        "the plan relies on a rank's having ended, or on its running on, and that cannot be seen any more",
        "a task of which one rank was to be started again, and whose other rank has failed by now",
        _AGAIN,
    ),
    "plan-signature": Code(
        Group.SAVED,
        "the signature of a saved plan does not hold: another key made it, or the plan was changed since",
        "a plan that was edited on its way from the review",
        "plan again, look at it, and have that signed by a key that may",
    ),
    "plan-unsigned": Code(
        Group.SAVED,
        "a policy, or the caller, wants saved plans to be signed, and this one is not",
        "`fleetform apply FILE --signed-by team.pub` without a FILE.sig",
        "`fleetform plan --out FILE --sign KEY`, or `ssh-keygen -Y sign -n fleetform-plan -f KEY FILE`",
    ),
    "plan-recovered": Code(
        Group.SAVED,
        "a command that was cut short since the plan was made had made something",
        "a killed `fleetform apply`",
        "`fleetform apply` records it; or plan again",
    ),
}
