"""EC2 as the tests know it: moto's, with the behaviour that matters here and that moto 5.2.5 has not.

* A client token makes one thing: asked again the same, the first answer comes back; asked otherwise, it is
  `IdempotentParameterMismatch`; for an instance that has ended, `IdempotentInstanceTerminated`. It is of one
  zone. The first answer comes back for a volume that is gone, too: that was made an hour ago then, so that no
  test has to wait.
* `AttachVolume` refuses a volume that is attached or in another zone, an instance that does not run, and a
  device that is taken. moto attaches anything to anything.
* `DeleteVolume` refuses one that is attached.
* Placement groups and capacity reservations: see `placed`.
* Instances have no public address, and private ones of this machine: nobody answers there, and nobody else is
  asked. With `python server.py FOLDER` they get those that FOLDER/addresses lists, as long as there are any.
  What starts is in FOLDER/ID.json (`address`, `user_data`), and what ended has FOLDER/ID.gone. Whoever ends
  it may say why in FOLDER/ID.reason: a code of EC2, as that of a spot instance that is wanted back.
  An address is given again once there is FOLDER/ADDRESS.free.
  FOLDER/disks has the volumes that are attached: `instance`, `device`, `size` in GiB by their ids.

All of it is written from Amazon's public documentation of the API. Started as `python server.py`, it writes
its port on stdout and serves until it is killed.
"""

import base64
import io
import json
import os
import re
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

AMI = "ami-00000001"
ACCOUNT = "123456789012"
IMAGE = {
    "ami_id": AMI,
    "name": "test",
    "owner_id": ACCOUNT,
    "description": "",
    "virtualization_type": "hvm",
    "architecture": "x86_64",
    "hypervisor": "xen",
    "image_location": "a/b",
    "public": True,
    "image_type": "machine",
    "root_device_name": "/dev/xvda",
    "root_device_type": "ebs",
    "sriov": "simple",
}
NAMED = {
    "ami-0000000a": ("noble-20250101", ACCOUNT, "2025-01-01", "x86_64"),
    "ami-0000000b": ("noble-20250601", ACCOUNT, "2025-06-01", "x86_64"),
    "ami-0000000c": ("noble-20251201", ACCOUNT, "2025-12-01", "arm64"),
    "ami-0000000d": ("noble-20260101", "999999999999", "2026-01-01", "x86_64"),
}
"""Images to be looked for: name, owner, day, architecture."""
FAULT = (
    "<Response><Errors><Error><Code>{}</Code><Message>{}</Message></Error></Errors>"
    "<RequestID>t</RequestID></Response>"
)


class RefusedError(Exception):
    """EC2 says no."""


class Ec2:
    """The application in front of moto's."""

    def __init__(self, moto, backend, types, placed, folder=None):
        self.moto = moto
        self.types = types
        self.placed = placed
        self.folder = folder
        self.free = (folder / "addresses").read_text().split() if folder else []
        self.given = {}
        self.count = 0
        self.backend = backend
        self.turn = threading.Lock()
        self.tokens = {}
        self.asked = set()

    def __call__(self, environ, start):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        asked = dict(parse_qsl(body.decode(), keep_blank_values=True))
        # moto's own cannot be asked for two things at once: it changes plain dictionaries.
        with self.turn:
            try:
                status, headers, answer = self.answer(environ, asked)
            except RefusedError as refused:
                answer = FAULT.format(*refused.args).encode()
                status = "400 Bad Request"
                headers = [("Content-Type", "text/xml"), ("Content-Length", str(len(answer)))]
        start(status, headers)
        return [answer]

    def answer(self, environ, asked):
        """Status, headers and body."""
        action = asked.get("Action")
        known = self.placed.answer(self.of(environ), asked)
        if known is not None:
            return known
        if action in ("RunInstances", "CreateVolume") and "ClientToken" in asked:
            return self.once(environ, asked)
        if action == "AttachVolume":
            self.check_attach(environ, asked)
            self.asked.add(asked["VolumeId"])
        if action == "DeleteVolume":
            volume = self.of(environ).volumes.get(asked["VolumeId"])
            if volume is not None and volume.attachment:
                raise RefusedError("VolumeInUse", f"Volume {volume.id} is attached")
        answer = self.forward(environ)
        if action == "TerminateInstances" and answer[0].startswith("200"):
            for made in re.findall(rb"<instanceId>(i-[0-9a-f]+)<", answer[2]):
                self.end(environ, made.decode())
        if self.folder and action in ("AttachVolume", "DetachVolume", "ModifyVolume", "TerminateInstances"):
            self.disks(environ)
        return answer

    def disks(self, environ):
        """With machines, reports which disks are attached to each."""
        # Not those that an instance begins with.
        held = ((v, v.attachment) for v in self.of(environ).volumes.values() if v.attachment)
        found = {
            v.id: {"instance": a.instance.id, "device": a.device, "size": int(v.size)}
            for v, a in held
            if a.instance.state != "terminated" and v.id in self.asked
        }
        (self.folder / "new").write_text(json.dumps(found))
        (self.folder / "new").rename(self.folder / "disks")

    def begin(self, environ, asked, made):
        """An instance gets its address, and a machine if there is one."""
        self.count += 1
        instance = self.find(environ, made)
        instance.placement.group_name = asked.get("Placement.GroupName", "")
        card = instance.nics[0]
        card.public_ip = None
        for file in self.folder.glob("*.free") if self.folder else ():
            self.free.append(file.stem)
            file.unlink()
        card.private_ip_address = f"127.1.{self.count >> 8 & 255}.{self.count & 255}"
        if self.free:
            card.private_ip_address = self.given[made] = self.free.pop(0)
            told = base64.b64decode(asked.get("UserData", "")).decode()
            text = json.dumps({"address": card.private_ip_address, "user_data": told})
            (self.folder / "new").write_text(text)
            (self.folder / "new").rename(self.folder / f"{made}.json")

    def end(self, environ, made):
        """Its machine goes. The address stays taken: it is another's only once that machine is off."""
        if made in self.given:
            reason = self.folder / f"{made}.reason"
            if reason.exists():
                said = self.find(environ, made).state_reason
                said.code = said.message = reason.read_text()
            (self.folder / f"{made}.gone").touch()

    def find(self, environ, made):
        """One instance."""
        found = (i for r in self.of(environ).reservations.values() for i in r.instances)
        return next(i for i in found if i.id == made)

    def forward(self, environ):
        """What moto answers."""
        head: list[Any] = []

        def start(status, headers, exc_info=None):
            head[:] = status, headers

        answer = b"".join(self.moto(environ, start))
        return (*head, answer)

    def of(self, environ):
        """The model that moto has of the region that was signed for."""
        scope = environ["HTTP_AUTHORIZATION"].partition("/ec2/aws4_request")[0]
        return self.backend[ACCOUNT][scope.rpartition("/")[2]]

    def once(self, environ, asked):
        """What its token made, or makes now."""
        zone = asked.get("Placement.AvailabilityZone") or asked.get("AvailabilityZone")
        key = (asked["Action"], asked["ClientToken"], zone)
        before = self.tokens.get(key)
        if before is None:
            if asked["Action"] == "RunInstances":
                self.placed.check(self.of(environ), self.types, asked)
            answer = self.forward(environ)
            if answer[0].startswith("200"):
                self.tokens[key] = asked, answer
                for made in re.findall(rb"<instanceId>(i-[0-9a-f]+)<", answer[2]):
                    self.begin(environ, asked, made.decode())
            return answer
        same, answer = before
        if same != asked:
            raise RefusedError(
                "IdempotentParameterMismatch", "The parameters do not match those of the token"
            )
        made = re.findall(rb"<instanceId>(i-[0-9a-f]+)<", answer[2])
        if made and self.ended(environ, made[0].decode()):
            raise RefusedError("IdempotentInstanceTerminated", "The token is that of a terminated instance")
        volume = re.findall(rb"<volumeId>(vol-[0-9a-f]+)<", answer[2])
        if volume and volume[0].decode() not in self.of(environ).volumes:
            then = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()
            status, headers, body = answer
            return status, headers, re.sub(rb"(?<=<createTime>)[^<]{24}(?=<)", then, body)
        return answer

    def ended(self, environ, made):
        """Whether an instance has ended."""
        return self.find(environ, made).state == "terminated"

    def check_attach(self, environ, asked):
        """What EC2 looks at before it attaches."""
        model = self.of(environ)
        volume = model.volumes.get(asked["VolumeId"])
        instances = {i.id: i for r in model.reservations.values() for i in r.instances}
        instance = instances.get(asked["InstanceId"])
        if volume is None or instance is None:
            return  # moto says it
        if volume.attachment:
            raise RefusedError("VolumeInUse", f"{volume.id} is already attached to an instance")
        if instance.state != "running":
            raise RefusedError("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
        if getattr(volume.zone, "name", volume.zone) != instance.placement.zone:
            raise RefusedError(
                "InvalidVolume.ZoneMismatch", f"{volume.id} and {instance.id} are in two zones"
            )
        held = (v.attachment for v in model.volumes.values() if v.attachment)
        if asked["Device"] in {a.device for a in held if a.instance is instance}:
            summary = f"Invalid value '{asked['Device']}' for unixDevice. Attachment point is already in use"
            raise RefusedError("InvalidParameterValue", summary)


def main():
    """Serve until killed."""
    # moto reads 1,300 images at the start unless it is given others.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as images:
        keys = ("name", "owner_id", "creation_date", "architecture")
        named = [{**IMAGE, "ami_id": i, **dict(zip(keys, told, strict=True))} for i, told in NAMED.items()]
        json.dump([IMAGE, *named], images)
        images.flush()
        validated = ("MOTO_ENABLE_AMI_VALIDATION", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION")
        settings = {"MOTO_AMIS_PATH": images.name, **dict.fromkeys(validated, "true")}
        os.environ.update(settings)
        from moto.ec2.models import ec2_backends
        from moto.ec2.models.instance_types import INSTANCE_TYPES
        from moto.ec2.utils import filter_dict_attribute_mapping
        from moto.moto_api._internal import mock_random
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        filter_dict_attribute_mapping["placement-group-name"] = "placement.group_name"
        sys.path.insert(0, str(Path(__file__).parents[3]))
        from tests.providers.ec2.placed import Placed
        from tests.support import forked

        class Quiet(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

            def log(self, *_):
                pass

        if sys.argv[1:2] == [forked.FORK]:
            forked.stand_by()
            os.environ.update(settings)
            mock_random.seed()  # no two of them make the same ids
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
        moto = DomainDispatcherApplication(create_backend_app)
        served = Ec2(moto, ec2_backends, INSTANCE_TYPES, Placed(RefusedError), folder)
        server = make_server("127.0.0.1", 0, served, threaded=True, request_handler=Quiet)
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
