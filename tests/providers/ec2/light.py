"""An EC2 that is fast at any size: instances in a dictionary, in pages. moto would take seconds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from tests.providers.ec2.scripted import Answer, Asked, answer, instance, refusal, reservations


class Light:
    """What a crowd of nodes is asked for; `Scripted(Light())` serves it."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, Mapping[str, str]]] = {}
        """Token → id and tags."""
        self.pages = 0
        """Answers to listings that were not the last one."""

    def add(self, token: str, tags: Mapping[str, str]) -> str:
        """One instance; its id."""
        made = f"i-{len(self.made):08x}"
        self.made[token] = made, tags
        return made

    def __call__(self, asked: Asked) -> Answer | str:
        action = asked["Action"]
        if action == "DescribeInstances":
            return answer(action, self._list(asked))
        if action == "DescribeVolumes":
            return answer(action, "<volumeSet/>")
        return refusal("InvalidAction", action)

    def _list(self, asked: Asked) -> str:
        wanted: dict[str, set[str]] = {}
        for number in itertools.count(1):
            name = asked.get(f"Filter.{number}.Name")
            if name is None:
                break
            start = f"Filter.{number}.Value."
            wanted[name] = {value for key, value in asked.items() if key.startswith(start)}
        found = [(made, tags) for made, tags in self.made.values() if _fits(made, tags, wanted)]
        begin, size = int(asked.get("NextToken") or 0), int(asked["MaxResults"])
        more = str(begin + size) if begin + size < len(found) else ""
        self.pages += bool(more)
        return reservations(*(instance(*one) for one in found[begin : begin + size]), token=more)


def _fits(made: str, tags: Mapping[str, str], wanted: Mapping[str, set[str]]) -> bool:
    known = {"instance-id": made, "instance-state-name": "running"}
    said = {name: known.get(name, tags.get(name.removeprefix("tag:"), "")) for name in wanted}
    return all(said[name] in values for name, values in wanted.items())
