"""Placement groups and capacity reservations, which moto 5.2.5 does not have.

* A placement group is made, listed and deleted by its name. One that an instance is in is `InUse`; so is one
  that has instances in another zone. Types that no group of the strategy `cluster` takes are refused.
* Every region has the reservations in `RESERVED`. An instance in one must have its type, zone and market: a
  capacity block must be requested as such.

Written from Amazon's public documentation of the API.
"""

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
RESERVED = {
    "cr-0000000a": ("m5.large", "us-east-1b", "default", "active"),
    "cr-0000000b": ("p5.48xlarge", "us-east-1a", "capacity-block", "active"),
    "cr-0000000c": ("m5.large", "us-east-1a", "default", "expired"),
}
"""Reservation → instance type, zone, kind, state."""
TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
MARKET = "InstanceMarketOptions.MarketType"


class Placed:
    """What stands in front of moto's model for them."""

    def __init__(self, refused):
        """`refused` is what is raised where EC2 says no: a code and a message."""
        self.refused = refused
        self.groups = {}

    def answer(self, model, asked):
        """The answer to an action that is about them; None for any other."""
        name = asked.get("GroupName")
        mine = self.groups.setdefault(model.region_name, {})
        action = asked.get("Action")
        if action == "CreatePlacementGroup":
            if name in mine:
                raise self.refused("InvalidPlacementGroup.Duplicate", f"'{name}' already exists")
            mine[name] = asked["Strategy"], _tags(asked)
            return _said(asked, "<return>true</return>")
        if action == "DeletePlacementGroup":
            if name not in mine:
                raise self.refused("InvalidPlacementGroup.Unknown", f"'{name}' is unknown")
            if self.members(model, name):
                raise self.refused("InvalidPlacementGroup.InUse", f"'{name}' is in use")
            del mine[name]
            return _said(asked, "<return>true</return>")
        if action == "DescribePlacementGroups":
            wanted = _filter(asked, "group-name")
            there = {n: g for n, g in mine.items() if wanted is None or n in wanted}
            items = "".join(
                f"<item><groupName>{n}</groupName><strategy>{strategy}</strategy><state>available</state>"
                f"<tagSet>{tags}</tagSet></item>"
                for n, (strategy, tags) in there.items()
            )
            return _said(asked, f"<placementGroupSet>{items}</placementGroupSet>")
        if action == "DescribeCapacityReservations":
            return self.reserved(asked)
        return None

    def reserved(self, asked):
        """One reservation by its id."""
        made = asked.get("CapacityReservationId.1")
        if made not in RESERVED:
            raise self.refused("InvalidCapacityReservationId.NotFound", f"'{made}' does not exist")
        kind, zone, sort, state = RESERVED[made]
        return _said(
            asked,
            f"<capacityReservationSet><item><capacityReservationId>{made}</capacityReservationId>"
            f"<instanceType>{kind}</instanceType><availabilityZone>{zone}</availabilityZone>"
            f"<reservationType>{sort}</reservationType><state>{state}</state></item></capacityReservationSet>",
        )

    def members(self, model, name):
        """The instances in a group that have not ended."""
        every = (i for r in model.reservations.values() for i in r.instances)
        return [i for i in every if i.placement.group_name == name and i.state != "terminated"]

    def check(self, model, types, asked):
        """What EC2 looks at before it starts an instance."""
        name, kind = asked.get("Placement.GroupName"), asked.get("InstanceType")
        zone = asked.get("Placement.AvailabilityZone")
        if name:
            if name not in self.groups.get(model.region_name, {}):
                raise self.refused("InvalidPlacementGroup.Unknown", f"'{name}' is unknown")
            if "cluster" not in types[kind]["PlacementGroupInfo"]["SupportedStrategies"]:
                raise self.refused(
                    "InvalidParameterCombination", f"Placement groups may not be used with '{kind}'"
                )
            if {i.placement.zone for i in self.members(model, name)} - {zone}:
                raise self.refused("InvalidPlacementGroup.InUse", f"'{name}' is in use in another zone")
        made = asked.get(TARGET)
        if made:
            found = RESERVED.get(made)
            if found is None:
                raise self.refused("InvalidCapacityReservationId.NotFound", f"'{made}' does not exist")
            market = "capacity-block" if found[2] == "capacity-block" else None
            if found[:2] != (kind, zone) or asked.get(MARKET) != market or found[3] != "active":
                raise self.refused("InvalidParameterValue", f"'{made}' does not match")


def _tags(asked):
    out = ""
    for i in range(1, 51):
        key = asked.get(f"TagSpecification.1.Tag.{i}.Key")
        if key is not None:
            value = asked[f"TagSpecification.1.Tag.{i}.Value"]
            out += f"<item><key>{key}</key><value>{value}</value></item>"
    return out


def _filter(asked, name):
    """The values of the one filter that is used here."""
    if asked.get("Filter.1.Name") != name:
        return None
    return {value for key, value in asked.items() if key.startswith("Filter.1.Value.")}


def _said(asked, content):
    action = asked["Action"]
    text = f'<{action}Response xmlns="{NAMESPACE}"><requestId>t</requestId>{content}</{action}Response>'
    data = text.encode()
    return "200 OK", [("Content-Type", "text/xml"), ("Content-Length", str(len(data)))], data
