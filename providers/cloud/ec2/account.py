"""One use of EC2: its regions, its options, and what every kind of thing needs of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from declarative.provider import Config, PermanentError, PermanentKind
from declarative.resource import VOLUME_ID
from declarative.spec.clouds import ImageFilter
from declarative.state import Record
from providers.cloud import marks, regions, settings
from providers.cloud.catalog import Catalog, catalog
from providers.cloud.ec2.ambient import Ambient
from providers.cloud.ec2.codes import MISMATCH
from providers.cloud.ec2.images import Disk, newest, own_disk
from providers.cloud.ec2.region import Region, endpoint
from providers.cloud.marks import Mark

OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "disk_size": int,
    "disk_type": str,
    "key_name": str,
    "placement_group": str,
    "profile": str,
    "volume_iops": int,
    "volume_throughput": int,
}
LIVE = ("pending", "running", "stopping", "stopped")
"""States of instances that are there. The others do not come back."""


class Account(regions.Account[Region]):
    """The regions of a backend, and whose things are looked for there."""

    CLOUD = "EC2"
    MISMATCH = MISMATCH
    ARCHITECTURES = ("x86_64", "arm64")

    def __init__(self, config: Config) -> None:
        super().__init__(config, OPTIONS)
        if self.disk_size is not None and self.disk_size < 1:
            summary = f"the option `disk_size` is in GiB, and cannot be {self.disk_size}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.disk_size")
        self._own: dict[tuple[str, str], Disk] = {}
        self._ambient: Ambient | None = None

    @property
    def disk_size(self) -> int | None:
        """GiB of the disk that a node starts from, as the options say; None: `NODE_DISK`, or its image's."""
        found = self.options.get("disk_size")
        return None if found is None else int(found)

    @property
    def catalog(self) -> Catalog:
        """What EC2 has, as far as that is known without asking."""
        return catalog("ec2")

    # ------------------------------------------------------------------------------------ regions

    def make(self, name: str) -> Region:
        """See `regions.Account`."""
        given = self.config.endpoint or endpoint(name, self.catalog.zones)
        login = (self._login(name), self.scrub)
        return Region(name, settings.host(given), login, self.config, self.timeout)

    def _login(self, region: str) -> Callable[[], Mapping[str, str]]:
        """Key, secret and token: by the variables that are named, else what AWS's own tools would find."""
        profile = self.options.get("profile")
        if self.config.credentials:
            if profile:
                summary = "`credentials` names variables, and the option `profile` another login"
                hint = "keep one of the two"
                raise PermanentError(PermanentKind.INVALID, summary, about="options.profile", hint=hint)
            values = settings.secrets(self.config, ("key", "secret"), ("token",))
            self.scrub.learn(values.values())
            return lambda: values
        settings.refuse()
        if self._ambient is None:
            self._ambient = Ambient(self.config, profile, region, self.scrub.learn)
        return self._ambient

    def find_image(self, region: str, asked: ImageFilter) -> str:
        """See `account.Account`."""
        return newest(self.region(region), asked, self.architecture)

    def own_disk(self, region: Region, image: str) -> dict[str, Any]:
        """Parameters of the disk that a node starts from."""
        key = region.name, image
        if key not in self._own:
            self._own[key] = own_disk(region, image)
        size = self.disk_size or max(settings.NODE_DISK, self._own[key].size)
        told = {"VolumeSize": size, "VolumeType": self.options.get("disk_type")}
        mapping = {"DeviceName": self._own[key].device, "Ebs": {**told, "DeleteOnTermination": True}}
        return {"BlockDeviceMapping": [mapping]}

    # -------------------------------------------------------------------------------------- marks

    def mine(self, **more: str) -> dict[str, list[str]]:
        """The filter for what is ours; `address` and `token` narrow it."""
        return {
            f"tag:{marks.OWNER}": [self.owner],
            **{f"tag:{marks.OURS}{key}": [value] for key, value in more.items()},
        }

    def tags(self, mark: Mark) -> dict[str, str]:
        """Everything that is written on a thing: its name (not on what is adopted), the user's tags, ours."""
        users = mark.tags
        for key in users:
            if key.startswith((marks.OURS, "aws:")):
                summary = f"{mark.address}: a tag cannot begin with `{marks.OURS}` or `aws:`: {key}"
                raise PermanentError(PermanentKind.INVALID, summary, about="tags")
        name = {} if VOLUME_ID in mark.inputs else {"Name": mark.address.name}
        return {**name, **users, **marks.written(mark)}

    def retag(self, region: Region, thing: str, have: Mapping[str, str], mark: Mark) -> None:
        """Write a new mark over the one that `have` holds, or in its place if somebody removed it. May be cut
        short anywhere, and tried again.
        """
        before = {} if self.lost(have) else marks.read(have, thing).inputs
        after = self.tags(mark)
        users = [k for k in marks.tags_in(before) if k in have and k not in after]
        region.untag(thing, users)  # first: which they are stands in the old mark
        region.tag(thing, after)
        rest = re.compile(re.escape(marks.INPUTS) + r"\.\d+")
        region.untag(thing, [k for k in have if rest.fullmatch(k) and k not in after])


def made_id(have: Record, prefix: str) -> str | None:
    """The id that a record has of EC2; None if it has none that could be one."""
    found = str(have.outputs.get("id", ""))
    return found if re.fullmatch(rf"{prefix}-[0-9a-f]{{4,32}}", found) else None
