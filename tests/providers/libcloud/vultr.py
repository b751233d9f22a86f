"""A small Vultr: instances, blocks and keys as libcloud has recorded them, with a life of their own.

Written from Vultr's reference of the API v2, not compared with it. Nothing is unique but ids. A page begins
after the last thing of the one before (`cursor`); a change takes some seconds; a block that is on an instance
is neither attached once more nor deleted.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tests.providers.cloud.stand_in import Clock, RefusedError, StandIn, header, pages, route
from tests.providers.cloud.web import Answer, Asked
from tests.providers.libcloud.scripted import recorded

KEY = "a-very-secret-key"
REGION = "ewr"
BOOT, WORK = 60.0, 3.0
"""Seconds until an instance runs, and until a change of a block is done."""


class VultrApi(StandIn):
    """`answer` for a `Web`."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.instances: dict[str, dict[str, Any]] = {}
        self.blocks: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        self.page = 100
        self.key = KEY
        self._ids = itertools.count(1)

    def admit(self, asked: Asked) -> None:
        if header(asked, "Authorization") != f"Bearer {self.key}":
            raise self.refusal(401, "Invalid API token.")

    def unknown(self, asked: Asked) -> RefusedError:
        return self.refusal(404, f"Invalid endpoint {asked.path}")

    @staticmethod
    def refusal(status: int, text: str) -> RefusedError:
        return RefusedError(status, {"error": text, "status": status})

    def _id(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._ids):012}"

    def _of(self, things: Mapping[str, dict[str, Any]], made: str) -> dict[str, Any]:
        if made not in things:
            raise self.refusal(404, f"Invalid id {made}")
        return things[made]

    def _list(self, asked: Asked, name: str, things: Mapping[str, dict[str, Any]]) -> Answer:
        size = min(self.page, int(asked.params.get("per_page") or 100))
        part, after = pages(list(things.values()), size, asked.params.get("cursor", ""))
        meta = {"total": len(things), "links": {"next": after or "", "prev": ""}}
        return 200, {name: part, "meta": meta}

    # ----------------------------------------------------------------------------------- instances

    @route("GET /v2/plans")
    def list_plans(self, asked: Asked) -> Answer:
        return 200, recorded("vultr_v2", "list_sizes")

    @route("GET /v2/instances")
    def list_instances(self, asked: Asked) -> Answer:
        return self._list(asked, "instances", self.instances)

    @route("POST /v2/instances")
    def launch(self, asked: Asked) -> Answer:
        if not all(key in self.keys for key in asked.body["sshkey_id"]):
            raise self.refusal(400, "Invalid SSH key")
        made = self._id()
        said = {name: asked.body[name] for name in ("label", "tags", "region", "plan")}
        instance = {**recorded("vultr_v2", "create_node")["instance"], **said, "id": made}
        instance["date_created"] = self.clock.text()
        self.instances[made] = instance
        running = {"status": "active", "main_ip": f"127.30.0.{int(made[-12:]) % 250}"}
        self.clock.later(BOOT, lambda: instance.update(running))
        return 202, {"instance": instance}

    @route("GET /v2/instances/{id}")
    def show_instance(self, asked: Asked, made: str) -> Answer:
        return 200, {"instance": self._of(self.instances, made)}

    @route("PATCH /v2/instances/{id}")
    def change_instance(self, asked: Asked, made: str) -> Answer:
        self._of(self.instances, made).update(tags=asked.body["tags"])
        return 202, {"instance": self.instances[made]}

    @route("DELETE /v2/instances/{id}")
    def end_instance(self, asked: Asked, made: str) -> Answer:
        self._of(self.instances, made)
        del self.instances[made]
        for block in self.blocks.values():
            if block["attached_to_instance"] == made:
                block["attached_to_instance"] = ""
        return 204, None

    # -------------------------------------------------------------------------------------- blocks

    @route("GET /v2/blocks")
    def list_blocks(self, asked: Asked) -> Answer:
        return self._list(asked, "blocks", self.blocks)

    @route("POST /v2/blocks")
    def make_block(self, asked: Asked) -> Answer:
        made = self._id()
        said = {name: asked.body[name] for name in ("region", "size_gb", "label")}
        block = {**recorded("vultr_v2", "create_volume")["block"], **said, "id": made}
        block |= {"date_created": self.clock.text(), "mount_id": f"{REGION}-{made[-12:]}"}
        self.blocks[made] = block
        self.clock.later(WORK, lambda: block.update(status="active"))
        return 202, {"block": block}

    @route("PATCH /v2/blocks/{id}")
    def change_block(self, asked: Asked, made: str) -> Answer:
        self._of(self.blocks, made).update(asked.body)
        return 204, None

    @route("DELETE /v2/blocks/{id}")
    def end_block(self, asked: Asked, made: str) -> Answer:
        if self._of(self.blocks, made)["attached_to_instance"]:
            raise self.refusal(400, "Block storage volume is attached to a server")
        del self.blocks[made]
        return 204, None

    @route("POST /v2/blocks/{id}/attach")
    def attach(self, asked: Asked, made: str) -> Answer:
        block, instance = self._of(self.blocks, made), asked.body["instance_id"]
        self._of(self.instances, instance)
        if block["attached_to_instance"]:
            raise self.refusal(400, "Block storage volume is already attached to a server")
        block["attached_to_instance"] = instance
        return 204, None

    @route("POST /v2/blocks/{id}/detach")
    def detach(self, asked: Asked, made: str) -> Answer:
        block = self._of(self.blocks, made)
        if not block["attached_to_instance"]:
            raise self.refusal(400, "Block storage volume is not currently attached to a server")
        block["attached_to_instance"] = ""
        return 204, None

    # ---------------------------------------------------------------------------------------- keys

    @route("GET /v2/ssh-keys")
    def list_keys(self, asked: Asked) -> Answer:
        return self._list(asked, "ssh_keys", self.keys)

    @route("POST /v2/ssh-keys")
    def bring_key(self, asked: Asked) -> Answer:
        made = self._id()
        known = recorded("vultr_v2", "import_key_pair_from_string")["ssh_key"]
        self.keys[made] = {**known, **asked.body, "id": made}
        return 201, {"ssh_key": self.keys[made]}

    @route("DELETE /v2/ssh-keys/{id}")
    def drop_key(self, asked: Asked, made: str) -> Answer:
        self._of(self.keys, made)
        del self.keys[made]
        return 204, None
