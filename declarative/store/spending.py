"""The spending of each month: the hours of nodes times their recorded prices.

`paid_nodes` has the nodes that cost something now: since when, and how much. When a node is deleted, or its
price changes, its time is added to `spent_months` in the same transaction, so it counts exactly once. Months
are those of UTC. Unknown prices are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from declarative.model.codec import BadDataError
from declarative.model.state import Record, Spent
from declarative.store.sql import MOST, Connection, number

HOUR = 3600.0


def month_of(at: float) -> tuple[str, float, float]:
    """`2026-03`, and when that month begins and ends."""
    begins = datetime.fromtimestamp(at, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    ends = begins.replace(year=begins.year + begins.month // 12, month=begins.month % 12 + 1)
    return begins.strftime("%Y-%m"), begins.timestamp(), ends.timestamp()


def by_month(since: float, until: float) -> Iterator[tuple[str, float]]:
    """The months that lie in a time, and the hours of it in each."""
    while since < until:
        month, _, ends = month_of(since)
        yield month, (min(ends, until) - since) / HOUR
        since = ends


def read(connection: Connection, now: float) -> Spent:
    """The spending in the month of `now`, until then."""
    month, begins, _ = month_of(now)
    ended = connection.select("spent_months", "WHERE month = :its_month", its_month=month).first()
    paid = ((number(row.price), number(row.since)) for row in connection.select("paid_nodes"))
    running = sum(price * max(0.0, now - max(since, begins)) / HOUR for price, since in paid)
    dollars = (number(ended.dollars) if ended else 0.0) + running
    return Spent(month=month, dollars=dollars, hours=(now - begins) / HOUR)


def price_of(node: Record) -> float | None:
    """The recorded price of a node an hour; None if unknown. It is None for a partition's node: that exists
    anyway, and a site charges for what jobs hold of it.
    """
    try:
        inputs = node.node
    except BadDataError:  # `state check` reports it
        return None
    price = None if inputs.is_shared else inputs.price
    return float(price) if price is not None and 0 <= price < MOST else None


def count(connection: Connection, address: str, price: float | None, since: float, now: float) -> None:
    """Note that a node costs `price` an hour from `since` on; None if it is gone, or unknown."""
    its = {"its_address": address}
    paid = connection.select("paid_nodes", "WHERE address = :its_address", **its).first()
    if paid is not None and paid.price == price:
        return
    if paid is not None:
        connection.execute("DELETE FROM paid_nodes WHERE address = :its_address", **its)
        for month, hours in by_month(number(paid.since), now):
            more = {"its_month": month, "its_dollars": hours * number(paid.price)}
            add = "UPDATE spent_months SET dollars = dollars + :its_dollars WHERE month = :its_month"
            if not connection.execute(add, **more).rowcount:
                connection.insert("spent_months", {"month": month, "dollars": more["its_dollars"]})
        since = now
    if price:
        connection.insert("paid_nodes", {"address": address, "since": since, "price": price})


def count_all(connection: Connection, nodes: Iterable[Record], now: float) -> None:
    """Note what `nodes` cost, which are all nodes of a state that was written as a whole."""
    prices = {str(node.address): price_of(node) for node in nodes}
    for row in connection.select("paid_nodes", "ORDER BY address").all():
        if row.address not in prices:
            count(connection, row.address, None, now, now)
    for address, price in sorted(prices.items()):
        count(connection, address, price, now, now)
