"""One account of EC2: its regions, credentials, images and options, and what all kinds of things share.

If the backend names no credentials, botocore looks for them as AWS's own tools do: variables, `AWS_PROFILE`
and ~/.aws with roles and SSO, a token of the CI (web identity), the metadata of container and machine. It
renews expiring ones, in memory only. It is an extra (`aws`), since two named variables need no library.

`image: {filter: …}` means the newest image that matches. Anybody may choose an image's name, so only those of
one owner count: the account's own if none is named. If a retry finds a newer image, its create differs from
the first one's: EC2 reports this, and the instance of the first try is found by its token (`account.once`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from declarative.model.record import struct
from declarative.model.spec.backend import ImageFilter
from declarative.provider import (
    Config,
    PermanentError,
    PermanentKind,
    ProviderError,
    TransientError,
    TransientKind,
)
from providers.cloud import marks, settings
from providers.cloud.account import side_by_side
from providers.cloud.any import account
from providers.cloud.any.site import Site
from providers.cloud.catalog import Catalog, catalog
from providers.cloud.checks import is_adopted
from providers.cloud.ec2 import answers
from providers.cloud.ec2.answers import MISMATCH
from providers.cloud.ec2.region import Region, endpoint
from providers.cloud.marks import Mark
from providers.cloud.settings import write

T = TypeVar("T")

OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    "disk_size": int,
    "disk_type": str,
    "key_name": str,
    "placement_group": str,
    "profile": str,
    "volume_iops": int,
    "volume_throughput": int,
}


class Account(account.Account):
    """The regions of a backend, and the owner whose things are looked for."""

    CLOUD = "EC2"
    MISMATCH = MISMATCH
    TAGGED = True
    DISK_TYPE = "gp3"
    ARCHITECTURES = ("x86_64", "arm64")

    def __init__(self, config: Config, site_of: Callable[[Region], Site]) -> None:
        super().__init__(config, OPTIONS, lambda _, name: site_of(self._opened(name)), regional=True)
        if self.disk_size is not None and self.disk_size < 1:
            summary = f"the option `disk_size` is in GiB, and cannot be {self.disk_size}"
            raise PermanentError(PermanentKind.INVALID, summary, about="options.disk_size")
        self._regions: dict[str, Region] = {}
        self._looked: dict[tuple[str, str], dict[str, Any]] = {}
        self._ambient: Ambient | None = None

    @property
    def disk_size(self) -> int | None:
        """GiB of the disk from which a node starts, by the options; None: `NODE_DISK`, or its image's."""
        found = self.options.get("disk_size")
        return None if found is None else int(found)

    @property
    def catalog(self) -> Catalog:
        """EC2's offers, as known without a request."""
        return catalog("ec2")

    # ------------------------------------------------------------------------------------ regions

    def region(self, name: str) -> Region:
        """The requests to a region."""
        self.at(name)
        return self._regions[name]

    def _opened(self, name: str) -> Region:
        given = self.config.endpoint or endpoint(name, self.catalog.zones)
        login = (self._login(name), self.scrub)
        self._regions[name] = Region(name, settings.host(given), login, self.config, self.timeout)
        return self._regions[name]

    def each_region(self, look: Callable[[Region], Sequence[T]]) -> list[T]:
        """What `look` finds in all regions, in parallel; a region that cannot be asked is an error."""
        return side_by_side([self.region(name) for name in self.regions()], look)

    def _login(self, region: str) -> Callable[[], Mapping[str, str]]:
        """Key, secret and token: from the named variables, else as AWS's own tools find them."""
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
        return newest(self.region(region), asked, self.architecture)

    def described(self, region: str, image: str) -> dict[str, Any]:
        """EC2's description of an image, which `own_disk` then uses; `PermanentError` if there is none."""
        self._looked[region, image] = look(self.region(region), image)
        return self._looked[region, image]

    def own_disk(self, region: str, image: str) -> dict[str, Any]:
        """The parameters for a node's first disk."""
        own = disk_of(self._looked.get((region, image)) or self.described(region, image))
        size = self.disk_size or max(settings.NODE_DISK, own.size)
        disk = {"VolumeSize": size, "VolumeType": self.options.get("disk_type")}
        mapping = {"DeviceName": own.device, "Ebs": {**disk, "DeleteOnTermination": True}}
        return {"BlockDeviceMapping": [mapping]}

    # -------------------------------------------------------------------------------------- marks

    def tags(self, mark: Mark) -> dict[str, str]:
        """All tags of a thing: its name (unless it is adopted), the user's tags, ours."""
        users = mark.tags
        for key in users:
            if key.startswith((marks.OURS, "aws:")):
                summary = f"{mark.address}: a tag cannot begin with `{marks.OURS}` or `aws:`: {key}"
                raise PermanentError(PermanentKind.INVALID, summary, about="tags")
        name = {} if is_adopted(mark.inputs) else {"Name": mark.address.name}
        return {**name, **users, **marks.written(mark)}


_AWAY = ("ConnectionError", "HTTPClientError", "ConnectionClosedError", "MetadataRetrievalError")
"""botocore's errors when STS or the metadata service did not answer."""


class Ambient:
    """The credentials that botocore's chain finds, renewed when they expire. Safe to use from
    many threads.
    """

    def __init__(
        self, config: Config, profile: str | None, region: str, learn: Callable[[Iterable[str]], None]
    ) -> None:
        """`region` is where a role is requested if AWS's settings name no region. `learn` gets each secret
        before it is used.
        """
        self._backend, self._profile, self._region, self._learn = config.backend, profile, region, learn
        self._hint = write(config, "credentials")
        self._turn = threading.Lock()
        self._found: Any = None
        self._last: dict[str, str] = {}

    def __call__(self) -> dict[str, str]:
        """The current key, secret and token; `ProviderError` if there are none."""
        with self._turn:
            try:
                if self._found is None:
                    self._found = self._look()
                frozen = self._found.get_frozen_credentials()
            except ProviderError:
                raise
            except Exception as error:  # noqa: BLE001  # botocore raises whatever it stumbles over
                raise self._fault(error) from None
            given = {"key": frozen.access_key, "secret": frozen.secret_key, "token": frozen.token}
            values = {name: str(value) for name, value in given.items() if value}
            if values != self._last:
                self._learn(values.values())
                self._last = values
            return values

    def _look(self) -> Any:
        try:
            from botocore.session import Session  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            summary = (
                f"backend {self._backend} names no `key` under `credentials`, and botocore is not installed"
            )
            hint = f"{self._hint}; or, for profiles and roles, in its environment: `pip install botocore`"
            raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint) from None
        session = Session(profile=self._profile)
        if session.get_config_variable("region") is None:
            session.set_config_variable("region", self._region)
        found = session.get_credentials()
        if found is None:
            summary = (
                f"backend {self._backend} names no `credentials`, and AWS's own tools would find none either"
            )
            hint = f"{self._hint}; or set AWS_PROFILE, or log in: `aws sso login`"
            raise PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)
        return found

    def _fault(self, error: Exception) -> ProviderError:
        """Shows only the class and AWS's own code: messages may quote what was sent."""
        names = {cls.__name__ for cls in type(error).__mro__}
        response = getattr(error, "response", None)
        code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
        what = f"{type(error).__name__}{f' ({code})' if code else ''}"
        summary = f"backend {self._backend}: AWS's credentials could not be had: {what}"
        if not names.isdisjoint(_AWAY):
            return TransientError(TransientKind.NOT_SENT, summary, about="credentials")
        if "ProfileNotFound" in names:
            hint = "name a profile of ~/.aws/config: `AWS_PROFILE`, or `options: {profile: …}`"
        else:
            hint = "see that `aws sts get-caller-identity` works here with the same profile or role"
        return PermanentError(PermanentKind.AUTH, summary, about="credentials", hint=hint)


PAGE = 1000
OWN = "self"
"""EC2's word for the account that asks."""


@struct(frozen=True, slots=True, kw_only=True)
class Disk:
    """The disk from which nodes of an image start: its device, and its least size in GiB."""

    device: str
    size: int = 0


def look(region: Region, image: str) -> dict[str, Any]:
    """EC2's description of an image; `PermanentError` if there is none."""
    action = "DescribeImages"
    found = region.ask(action, "image", Filter=[{"Name": "image-id", "Value": [image]}])
    item = next(iter(answers.listed(action, found, "imagesSet")), None)
    if item is None:
        summary = f"{region.name} has no image {image}"
        hint = "images are of one region: write one for each, `image: {us-east-1: ami-…}`"
        if not image.startswith("ami-"):
            hint = "`image` is the id of one, `ami-…`; by its name: `image: {filter: {name: …, owner: …}}`"
        raise PermanentError(PermanentKind.NOT_FOUND, summary, about="image", hint=hint)
    return item


def disk_of(item: dict[str, Any]) -> Disk:
    """The disk in the result of `look`."""
    device = str(item.get("rootDeviceName") or "/dev/xvda")
    for mapped in item.get("blockDeviceMapping") or ():
        if mapped.get("deviceName") == device:
            size = str((mapped.get("ebs") or {}).get("volumeSize") or "")
            return Disk(device=device, size=int(size) if size.isdecimal() else 0)
    return Disk(device=device)


def newest(region: Region, asked: ImageFilter, architecture: str) -> str:
    """The id of the newest image that can be started and is not deprecated."""
    filters = {"name": asked.name, "state": "available", "architecture": architecture}
    found = list(
        region.pages(
            "DescribeImages",
            "imagesSet",
            PAGE,
            Owner=[asked.owner or OWN],
            Filter=[{"Name": name, "Value": [value]} for name, value in filters.items()],
        )
    )
    there = [image for image in found if image.get("imageId")]
    fresh = [image for image in there if not _deprecated(image)]
    if fresh:
        made = max(fresh, key=lambda image: (str(image.get("creationDate") or ""), str(image["imageId"])))
        return str(made["imageId"])
    raise _no_image(region, asked, architecture, there)


def _no_image(
    region: Region, asked: ImageFilter, architecture: str, deprecated: Sequence[Mapping[str, Any]]
) -> PermanentError:
    if deprecated:
        made = deprecated[0]["imageId"]
        summary = f"{region.name} has only deprecated images that fit {asked} ({made})"
        hint = f"name a newer one, or one by its id: `image: {{{region.name}: {made}}}`"
    else:
        summary = f"{region.name} has no image that fits {asked} for {architecture}"
        hint = "check its name and `owner`, and whether it is in this region"
        if asked.owner is None:
            hint = "another's image is found with `owner: ACCOUNT`; check its name, and whether it is there"
    return PermanentError(PermanentKind.NOT_FOUND, summary, about="image", hint=hint)


def _deprecated(image: dict[str, Any]) -> bool:
    """EC2 hides deprecated images, except the account's own."""
    try:
        when = datetime.fromisoformat(str(image.get("deprecationTime")))
    except ValueError:
        return False
    return (when if when.tzinfo else when.replace(tzinfo=UTC)) <= datetime.now(UTC)
