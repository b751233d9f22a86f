"""The suite's laws of nodes, volumes and attachments; of large places, and of bad connections to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import PermanentError, PermanentKind, Provider, ProviderError, Thing, TransientError
from declarative.provider.optional import Adjusts, Checks, Clears, FindsOthers, Recalls, Terms
from providers.testing.place import Base, Place, Spoilt, launch

AT_ONCE = 16
SENSELESS = (Spoilt.NOBODY, Spoilt.SENSELESS, Spoilt.DENIED)


class Things(Base):
    """Offers, creates, finds, listings, updates, deletes, readiness."""

    # ------------------------------------------------------------------------------------- offers

    def test_offers_are_whole_and_always_the_same(self, place: Place) -> None:
        """An offer has what a node needs; its price is None or not below 0."""
        offers = place.provider.offers()
        assert offers == place.provider.offers()
        for offer in offers:
            assert offer.backend == self.backend
            assert offer.region
            assert offer.instance_type
            assert offer.shape.cpu >= 1
            assert offer.shape.memory_mib >= 1
            assert offer.price is None or offer.price >= 0

    # ------------------------------------------------------------------------------------- create

    def test_a_new_lineage_owns_nothing(self, place: Place) -> None:
        """A listing before the first create is empty, and no fault."""
        assert place.provider.inventory() == ()

    def test_read_after_create_equals(self, place: Place) -> None:
        """A created thing is found and listed by its token, with the inputs of the create."""
        made = [place.node(), *([place.volume()] if self.volumes else [])]
        listed = {thing.address: thing for thing in place.provider.inventory()}
        assert set(listed) == {record.address for record in made}
        for record in made:
            found = place.provider.find(record.address, place.token(record))
            assert found is not None
            assert found == listed[record.address]
            assert found.token == place.token(record)
            assert dict(found.inputs) == dict(record.inputs)
            assert dict(found.outputs) == dict(record.outputs)

    def test_outputs_say_what_the_thing_is(self, place: Place) -> None:
        """Every thing has an id of its own; a node has an address."""
        made = [place.node("gpu-0"), place.node("gpu-1")]
        if self.volumes:
            made += [place.volume("data-0"), place.volume("gpu-0")]
        assert all(record.outputs["address"] for record in made[:2])
        ids = [record.outputs["id"] for record in made]
        assert all(ids)
        assert len(set(ids)) == len(ids)

    def test_create_twice_with_one_token_makes_one(self, place: Place) -> None:
        """A second try of a create finds what the first made."""
        record = place.node()
        assert place.create(record) == record
        assert [thing.address for thing in place.provider.inventory()] == [record.address]

    def test_creates_at_once_with_one_token_make_one(self, disks: Place) -> None:
        """An abandoned try may still run when the next one begins."""
        record = disks.wanted("volume", "data-0", self.volume_inputs)
        with ThreadPoolExecutor(8) as pool:
            tries = [pool.submit(disks.create, record) for _ in range(8)]
        made = [t.result() for t in tries if not isinstance(t.exception(), TransientError)]
        assert made
        assert len({str(m.outputs["id"]) for m in made}) == 1
        assert len(disks.provider.inventory()) == 1

    def test_a_create_whose_answer_was_lost_is_found(self, place: Place) -> None:
        """After a crash between the call and the record, the token alone finds the thing."""
        record = place.wanted("node", "gpu-0", self.node_inputs)
        place.provider.create(record.address, place.token(record), record.inputs, {})
        found = place.provider.find(record.address, place.token(record))
        assert found is not None
        assert dict(found.outputs) == dict(place.create(record).outputs)

    def test_nothing_is_found_by_another_token(self, place: Place) -> None:
        """A token stands for one create; an address alone does not."""
        record = place.node()
        assert place.provider.find(record.address, "0" * 32) is None
        assert place.provider.find(Address("node", "gpu-9"), place.token(record)) is None

    def test_a_later_generation_is_another_thing(self, place: Place) -> None:
        """A record of a deleted thing does not lead to a later thing at its address."""
        old = place.node()
        place.provider.delete(old)
        new = place.create(place.wanted("node", "gpu-0", self.node_inputs, generation=2))
        assert new.outputs["id"] != old.outputs["id"]
        assert place.provider.find(old.address, place.token(old)) is None
        place.provider.delete(old)
        assert place.provider.find(new.address, place.token(new)) is not None

    # ------------------------------------------------------------------- inventory, update, delete

    def test_the_inventory_is_complete(self, disks: Place) -> None:
        """Every page is read, and each thing carries its token."""
        made = [disks.volume(f"data-{i}") for i in range(self.many)]
        listed = {thing.address: thing.token for thing in disks.provider.inventory()}
        assert listed == {record.address: disks.token(record) for record in made}

    def test_an_update_is_seen_by_all(self, disks: Place) -> None:
        """An update leaves the same thing, with new inputs, and may be tried again."""
        record = disks.volume()
        for _ in range(2):
            outputs = disks.provider.update(record, disks.token(record), self.larger)
            assert outputs["id"] == record.outputs["id"]
        (thing,) = disks.provider.inventory()
        assert dict(thing.inputs) == dict(self.larger)
        assert thing.token == disks.token(record)

    def test_an_update_of_what_is_gone_is_an_error(self, disks: Place) -> None:
        """An update never makes a thing."""
        record = disks.volume()
        disks.provider.delete(record)
        with pytest.raises(PermanentError):
            disks.provider.update(record, disks.token(record), self.larger)
        assert disks.provider.inventory() == ()

    def test_delete_twice_succeeds(self, place: Place) -> None:
        """To delete an absent thing is a success, and so is one that never existed."""
        made = [place.node(), *([place.volume()] if self.volumes else [])]
        for record in made:
            place.provider.delete(record)
            place.provider.delete(record)
            assert place.provider.find(record.address, place.token(record)) is None
        assert place.provider.inventory() == ()
        place.provider.delete(place.wanted("node", "never-made", self.node_inputs))

    def test_what_another_owner_made_is_not_ours(self, place: Place) -> None:
        """Another lineage's things are not listed, found or deleted, whatever names they have."""
        record = place.node()
        stranger = Place(self, place.folder)
        try:
            assert stranger.provider.inventory() == ()
            assert stranger.provider.find(record.address, place.token(record)) is None
            if isinstance(finder := stranger.provider, FindsOthers):
                (theirs,) = finder.others([record.address, Address("volume", "data-0")])
                found = (theirs.address, theirs.id, theirs.lineage)
                assert found == (record.address, record.outputs["id"], place.lineage)
                assert list(finder.others([Address("node", "gpu-1")])) == []
            with suppress(PermanentError):
                stranger.provider.delete(record)
            with suppress(PermanentError):
                stranger.provider.delete(replace(record, outputs={}))
            with suppress(PermanentError):  # a place may or may not take one name twice
                stranger.create(stranger.wanted("node", "gpu-0", self.node_inputs))
            assert [thing.address for thing in place.provider.inventory()] == [record.address]
            if isinstance(owner := place.provider, FindsOthers):
                assert {e.lineage for e in owner.others([record.address])} <= {stranger.lineage}
            assert place.state(record) is NodeState.READY
        finally:
            stranger.clear()
        assert place.create(record) == record

    def test_what_is_there_and_not_ours_does_not_count_as_deleted(self, place: Place) -> None:
        """Whether somebody removed our mark or wrote another's over it: a thing that would stay, and cost
        money, is reported. Only one that is certainly gone is forgotten.
        """
        if not isinstance(place.provider, Recalls):
            pytest.skip("this provider finds nothing by its id")
        made = [place.node(), *([place.volume()] if self.volumes else [])]
        stranger = Place(self, place.folder)
        for record in made:
            with pytest.raises(PermanentError) as caught:
                stranger.provider.delete(record)
            assert caught.value.kind is PermanentKind.CONFLICT
        assert {thing.address for thing in place.provider.inventory()} == {r.address for r in made}
        for record in made:
            place.provider.delete(record)
            stranger.provider.delete(record)

    def test_errors_are_only_those_of_the_port(self, place: Place) -> None:
        """Asked about an absent thing, a provider answers or raises one of the two kinds; nothing else."""
        gone = Record(
            address=Address("node", "gpu-0"),
            backend=self.backend,
            inputs=self.node_inputs,
            outputs={"id": "x"},
        )
        other = replace(gone, address=Address("volume", "data-0"), inputs=self.volume_inputs)
        pair = replace(gone, address=Address("attachment", "a-0.data-0"), inputs={})
        p = place.provider
        calls: list[Callable[[], object]] = [
            lambda: p.create(Address("nonsense", "x"), "1" * 32, {}, {}),
            lambda: p.create(pair.address, "1" * 32, {}, {}),
            lambda: p.find(Address("node", "../../etc"), "1" * 32),
            lambda: p.update(gone, "1" * 32, self.node_inputs),
            lambda: p.update(pair, "1" * 32, {}),
            lambda: p.delete(gone),
            lambda: p.delete(other),
            lambda: p.delete(pair),
            lambda: p.readiness([gone]),
            lambda: p.start(gone, launch("a-0.1", "true")),
            lambda: p.start(gone, launch("../../x", "true")),
            lambda: p.start(gone, launch("a-0.1", "true", volumes={"/data": other})),
            lambda: p.poll(gone, ["a-0.1"]),
            lambda: p.stop(gone, "a-0.1", 0),
            lambda: p.change_limit(gone, "a-0.1", None),
            *([lambda: p.adjust(gone, "a-0.1", Terms(stop_seconds=1))] if isinstance(p, Adjusts) else []),
            lambda: p.read_log(gone, "a-0.1", 0),
        ]
        for call in calls:
            try:
                call()
            except ProviderError as error:
                assert isinstance(error, TransientError | PermanentError)  # noqa: PT017  # never the base
                assert error.summary  # noqa: PT017
        assert p.inventory() == ()

    def test_a_recalled_thing_is_there(self, place: Place) -> None:
        """By its id alone, and unchanged; a deleted thing is never recalled."""
        provider = place.provider
        if not isinstance(provider, Recalls):
            pytest.skip("this provider knows things by what is written on them alone")
        made = [place.node("gpu-0"), place.node("gpu-1"), *([place.volume()] if self.volumes else [])]
        found = provider.recall(made)
        for record in made:
            thing = found[record.address]
            assert isinstance(thing, Thing)
            assert (thing.address, dict(thing.actual)) == (record.address, {})
        place.provider.delete(made[1])
        found = provider.recall(made)
        assert [a for a, thing in found.items() if isinstance(thing, Thing)] == [
            r.address for r in made if r is not made[1]
        ]

    def test_a_check_finds_nothing_and_makes_nothing(self, place: Place) -> None:
        """A thing that can be made has no fault."""
        provider = place.provider
        if not isinstance(provider, Checks):
            pytest.skip("this provider does not look ahead")
        wanted = {Address("node", "gpu-0"): self.node_inputs}
        if self.volumes:
            wanted[Address("volume", "data-0")] = self.volume_inputs
        assert list(provider.check(wanted)) == []
        assert provider.inventory() == ()

    def test_what_is_cleared_was_cut_short(self, place: Place) -> None:
        """A complete thing stays, with what it needs. If nothing was made, there is no fault."""
        provider = place.provider
        if not isinstance(provider, Clears):
            pytest.skip("a create of this provider makes no more than the thing")
        made = place.node("gpu-0")
        for name in ("gpu-0", "gpu-1", "gpu-1"):
            other = replace(made, address=Address("node", name), outputs={})
            provider.clear(other.address, place.token(other), other.inputs)
        assert [thing.address for thing in provider.inventory()] == [made.address]
        assert place.node("gpu-1").outputs["id"] != made.outputs["id"]

    # ---------------------------------------------------------------------------------- readiness

    def test_readiness_says_when_it_was_seen(self, place: Place) -> None:
        """Every node gets an answer; a deleted node is not ready, with a reason."""
        here, gone = place.node("gpu-0"), place.node("gpu-1")
        place.provider.delete(gone)
        started = time.time()
        seen = place.provider.readiness([here, gone])
        assert set(seen) == {"gpu-0", "gpu-1"}
        assert seen["gpu-0"].state is NodeState.READY
        assert abs((seen["gpu-0"].observed_at or 0) - started) < 60
        assert seen["gpu-1"].state is not NodeState.READY
        assert seen["gpu-1"].reason

    # ---------------------------------------------------------------------------------- volumes

    def test_an_attachment_is_a_thing_as_others(self, disks: Place) -> None:
        """Its token makes it once; it is listed, found, and may be deleted twice."""
        volume, node = disks.volume(), disks.node()
        record = disks.attach("train-0", volume, node)
        assert disks.create(record, volume, node) == record
        found = disks.provider.find(record.address, disks.token(record))
        assert found is not None
        assert found in disks.provider.inventory()
        assert dict(found.inputs) == dict(record.inputs)
        disks.provider.delete(record)
        disks.provider.delete(record)
        assert {thing.address.kind for thing in disks.provider.inventory()} == {"volume", "node"}

    def test_a_volume_is_on_one_node_at_a_time(self, disks: Place) -> None:
        """A second attach is refused until the first holder is detached."""
        volume, first = disks.volume(), disks.node("gpu-0")
        second = disks.beside(first)
        held = disks.attach("train-0", volume, first)
        with pytest.raises(ProviderError):
            disks.attach("other-0", volume, second)
        disks.provider.delete(held)
        disks.attach("other-0", volume, second)

    def test_a_volume_in_use_is_not_deleted(self, disks: Place) -> None:
        """No running rank loses its disk."""
        volume, node = disks.volume(), disks.node()
        disks.attach("train-0", volume, node)
        with pytest.raises(ProviderError):
            disks.provider.delete(volume)
        assert disks.provider.find(volume.address, disks.token(volume)) is not None

    def test_a_volume_survives_its_node(self, disks: Place) -> None:
        """The end of a node ends its attachments, and nothing else."""
        volume, node = disks.volume(), disks.node("gpu-0")
        disks.attach("train-0", volume, node)
        disks.provider.delete(node)
        assert [thing.address for thing in disks.provider.inventory()] == [volume.address]
        disks.attach("other-0", volume, disks.after(node))


class Crowd(Base):
    """Listings of more nodes than any page holds."""

    def gather(self, place: Place, wanted: Sequence[Record]) -> list[Record]:
        """Make them all; a subclass with a place of its own may do it in another way."""
        provider = place.provider

        def make(record: Record) -> Record:
            outputs = provider.create(record.address, place.token(record), record.inputs, {})
            return replace(record, outputs=outputs)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(make, wanted))

    def disperse(self, place: Place, made: Sequence[Record]) -> None:
        """Remove them all; a place that ends with the test needs nothing."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(place.provider.delete, made))

    def test_listings_are_complete_at_any_size(self, place: Place) -> None:
        """All of `crowd` nodes are listed, each once, with its token, which also finds it."""
        if not self.crowd:
            pytest.skip("this provider makes no crowds here")
        wanted = [
            Record(address=Address("node", f"gpu-{i}"), backend=self.backend, inputs=self.node_inputs)
            for i in range(self.crowd)
        ]
        made = self.gather(place, wanted)
        try:
            ids = {str(record.outputs["id"]) for record in made}
            assert len(ids) == self.crowd
            listed = place.provider.inventory()
            assert len(listed) == self.crowd
            assert {t.address: t.token for t in listed} == {r.address: place.token(r) for r in wanted}
            assert {str(t.outputs["id"]) for t in listed} == ids
            last = place.provider.find(wanted[-1].address, place.token(wanted[-1]))
            assert last is not None
            assert last.outputs["id"] == made[-1].outputs["id"]
        finally:
            self.disperse(place, made)


class Spoiled(Base):
    """Laws of a bad connection. Skipped if `spoiled` gives nothing."""

    def _spoiled(self, place: Place, how: Spoilt) -> Provider:
        provider = self.spoiled(place.folder, place.lineage, how)
        if provider is None:
            pytest.skip("nothing of this provider is spoiled here")
        return provider

    @pytest.mark.parametrize("kind", ["node", "volume"])
    def test_a_crash_between_call_and_answer_is_found(self, place: Place, kind: str) -> None:
        """The create succeeded without an answer: its thing is found, and another try makes no second."""
        if kind == "volume" and not self.volumes:
            pytest.skip("this provider has no volumes")
        inputs = self.node_inputs if kind == "node" else self.volume_inputs
        record = place.wanted(kind, "lost-0", inputs)
        with pytest.raises(TransientError):
            self._spoiled(place, Spoilt.LOST).create(record.address, place.token(record), inputs, {})
        found = place.provider.find(record.address, place.token(record))
        assert found is not None
        again = place.create(record)
        assert again.outputs["id"] == found.outputs["id"]
        assert [thing.address for thing in place.provider.inventory()] == [record.address]

    @pytest.mark.parametrize("how", SENSELESS)
    def test_what_cannot_be_asked_is_never_empty(self, place: Place, how: Spoilt) -> None:
        """Listing, find, create and delete are all faults of the port, and never an answer."""
        node = place.create(place.wanted("node", "gpu-0", self.node_inputs))
        spoiled = self._spoiled(place, how)
        other = Record(address=Address("node", "gpu-1"), backend=self.backend, inputs=self.node_inputs)
        calls: list[Callable[[], Any]] = [
            spoiled.inventory,
            lambda: spoiled.find(node.address, place.token(node)),
            lambda: spoiled.create(other.address, "1" * 32, other.inputs, {}),
            lambda: spoiled.delete(node),
        ]
        for call in calls:
            with pytest.raises(ProviderError) as caught:
                call()
            assert isinstance(caught.value, TransientError | PermanentError)  # never the base
            assert caught.value.summary
        assert [thing.address for thing in place.provider.inventory()] == [node.address]
