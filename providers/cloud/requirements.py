"""What a backend of each first-class driver has to say before anything can be asked or made.

One thing that is missing is seldom alone: who is told of it is told of the others too, with the names that
the variables of the cloud's own tools have.
"""

from __future__ import annotations

from collections.abc import Mapping

from declarative.provider import Config

_AZURE = {
    "regions": "[eastus]",
    "credentials": "{tenant_id: AZURE_TENANT_ID, subscription_id: AZURE_SUBSCRIPTION_ID, "
    "key: AZURE_CLIENT_ID, secret: AZURE_CLIENT_SECRET}",
    "image": "Canonical:ubuntu-24_04-lts:server:latest",
    "network": "{subnets: {eastus: my-network/my-subnet}}",
    "options": "{resource_group: my-group}",
}
NEEDED: Mapping[str, Mapping[str, str]] = {
    "ec2": {
        "regions": "[us-east-1]",
        "credentials": "{key: AWS_ACCESS_KEY_ID, secret: AWS_SECRET_ACCESS_KEY}",
        "image": "ami-…",
    },
    "openstack": {
        "endpoint": "https://cloud.example.org:5000",
        "regions": "[RegionOne]",
        "credentials": "{username: OS_USERNAME, password: OS_PASSWORD}",
        "image": "debian-12",
        "options": "{project: lab}",
    },
    "gce": {
        "regions": "[us-central1]",
        "credentials": "{key: GOOGLE_APPLICATION_CREDENTIALS}",
        "image": "ubuntu-os-cloud/ubuntu-2404-lts-amd64",
    },
    "azure": _AZURE,
    "azure_arm": _AZURE,
    "digitalocean": {
        "regions": "[nyc3]",
        "credentials": "{key: DIGITALOCEAN_TOKEN}",
        "image": "ubuntu-24-04-x64",
    },
    "vultr": {
        "regions": "[ewr]",
        "credentials": "{key: VULTR_API_KEY}",
        "image": '"2284"',
    },
}
"""Driver → field → an example. `credentials` name environment variables."""
_CHOICES = {"options": ("resource_group", "project", "project_id")}
"""Of these, one has to be in the field."""


def write(config: Config, field: str) -> str | None:
    """`write …`, for a field that is missing or lacks something, and for all others that are; None if it is
    not known what the driver needs.
    """
    examples = NEEDED.get(config.driver, {})
    if field not in examples:
        return None
    others = (name for name in examples if name != field and not _has(config, name))
    # Without credentials in YAML, EC2's are looked for where AWS's own tools find them.
    missing = [field, *(name for name in others if (config.driver, name) != ("ec2", "credentials"))]
    first, *more = (f"`{name}: {examples[name]}`" for name in missing)
    as_well = f"; missing as well: {', '.join(more)}" if more else ""
    return f"write {first}{as_well}"


def _has(config: Config, field: str) -> bool:
    if field == "options":
        # Only a user of OpenStack names a project: an application's credentials are those of one.
        return ("secret" in config.credentials and config.driver == "openstack") or any(
            key in config.options for key in _CHOICES[field]
        )
    return bool(config.network.subnets if field == "network" else getattr(config, field))
