"""What stand-ins of clouds share, on a cloud of one kind of things."""

from __future__ import annotations

from typing import Any

import pytest

from tests.providers.cloud.described import Described, described, spoiled
from tests.providers.cloud.stand_in import Clock, Fault, Pace, RefusedError, StandIn, checked, pages, route
from tests.providers.cloud.web import LOST, Answer, Asked


class Things(StandIn):
    def __init__(self) -> None:
        super().__init__()
        self.things: dict[str, dict[str, Any]] = {}

    def admit(self, asked: Asked) -> None:
        if not self.clock.now():
            raise RefusedError(401, {})

    def unknown(self, asked: Asked) -> RefusedError:
        return RefusedError(404, {"code": "unknown"})

    @route("POST /v1/things")
    def make(self, asked: Asked) -> Answer:
        if wrong := checked(asked.body, {"name": str, "size": int}, ("name",)):
            raise RefusedError(400, {"code": f"{wrong[0]} {wrong[1]}"})
        made = {"id": str(len(self.things) + 1), "name": asked.body["name"]}
        self.things[made["id"]] = made
        return 200, made

    @route("GET /v1/things/{id}")
    def one(self, asked: Asked, made: str) -> Answer:
        return 200, self.things[made]

    @route("GET /v1/things/all")
    def every(self, asked: Asked) -> Answer:
        return 200, list(self.things.values())


def ask(cloud: Any, line: str, body: Any = None, **params: str) -> Answer:
    method, path = line.split()
    answer: Answer = cloud(Asked(method=method, path=path, params=params, body=body))
    return answer


def test_a_fixed_word_outranks_an_id():
    cloud = Things()
    made = ask(cloud, "POST /v1/things", {"name": "a"})[1]
    assert ask(cloud, "GET /v1/things/all") == (200, [made])
    assert ask(cloud, "GET /v1/things/1") == (200, made)
    assert ask(cloud, "PUT /v1/things/1")[0] == 404


def test_a_fault_comes_before_or_after_the_change():
    cloud = Things()
    cloud.faults = [
        Fault(line="POST ", answer=(429, {}), done=False, times=2),
        Fault(line="POST ", answer=LOST),
    ]
    answers = [ask(cloud, "POST /v1/things", {"name": "a"})[0] for _ in range(4)]
    assert answers == [429, 429, 0, 200]
    assert len(cloud.things) == 2


def test_the_clock_does_what_is_due_in_its_order():
    clock, done = Clock(), []
    clock.later(5, lambda: done.append(("late", clock.text())))
    clock.later(2, lambda: clock.later(1, lambda: done.append(("early", clock.text()))))
    clock.advance(4)
    assert done == [("early", "2026-11-30T00:00:03Z")]
    clock.advance(1)
    assert done[1:] == [("late", "2026-11-30T00:00:05Z")]


def test_a_pace_counts_what_it_allowed():
    clock = Clock()
    pace = Pace(clock, 2, 10)
    assert [pace.allows() for _ in range(3)] == [True, True, False]
    clock.advance(10)
    assert pace.allows()


def test_a_page_stays_where_it_is_if_an_earlier_thing_goes():
    things = [{"id": name} for name in "abcde"]
    first, token = pages(things, 2, "")
    assert [one["id"] for one in first] == ["a", "b"]
    assert pages(things[1:], 2, str(token))[0] == [{"id": "c"}, {"id": "d"}]
    assert pages(things, 2, "c") == ([{"id": "d"}, {"id": "e"}], None)


TEXT = {"type": "string"}
BODY = {"type": "object", "properties": {"name": TEXT}, "required": ["name"]}
THING = {**BODY, "properties": {"name": TEXT, "id": TEXT}}


def openapi(version: str, thing: dict[str, Any]) -> dict[str, Any]:
    def held(schema: dict[str, Any]) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema}}}

    answers = {"200": held({"$ref": "#/components/schemas/Thing"})}
    path = {
        "post": {"requestBody": {"required": True, **held(BODY)}, "responses": answers},
        "get": {
            "parameters": [{"in": "query", "name": "size", "schema": {"type": "integer"}}],
            "responses": answers,
        },
    }
    return {
        "openapi": version,
        "paths": {"/v1/things": path},
        "components": {"schemas": {"Thing": thing}},
    }


SWAGGER = {
    "swagger": "2.0",
    "basePath": "/v1",
    "definitions": {"Thing": THING},
    "paths": {
        "/things": {
            "get": {
                "parameters": [{"in": "query", "name": "size", "type": "integer"}],
                "responses": {"200": {"schema": {"$ref": "#/definitions/Thing"}}},
            },
            "post": {
                "parameters": [{"in": "body", "name": "body", "required": True, "schema": BODY}],
                "responses": {"200": {"schema": {"$ref": "#/definitions/Thing"}}},
            },
        }
    },
}


@pytest.mark.parametrize("text", [openapi("3.1.0", THING), openapi("3.0.1", THING), SWAGGER])
def test_the_judge_knows_three_forms_of_descriptions(text: dict[str, Any]):
    judge = Described(text)
    asked = Asked(method="POST", path="/v1/things", params={}, body={"name": "a"})
    complaints: list[str] = []
    cloud = judge.over(Things(), complaints)
    assert ask(cloud, "POST /v1/things", asked.body)[0] == 200
    assert complaints == []
    wrong = [Asked(method="POST", path="/v1/things", params={}, body=b) for b in (None, {}, {"name": 1})]
    wrong += [
        Asked(method="POST", path="/v1/things", params={}, body={"name": "a", "nam": "b"}),
        Asked(method="GET", path="/v1/things", params={"size": "x"}),
        Asked(method="GET", path="/v1/things", params={"sise": "1"}),
        Asked(method="DELETE", path="/v1/things", params={}),
    ]
    assert all(len(judge.request(one)) == 1 for one in wrong)
    assert judge.request(Asked(method="GET", path="/v1/things", params={"size": "1"})) == []
    assert judge.answer(asked, (200, {"name": "a", "unheard": 1}))
    assert judge.answer(asked, (409, {}))
    ask(cloud, "POST /v1/things", {"name": "a", "size": 1})
    assert len(complaints) == 1  # a field that the stand-in takes and the description does not know


def test_nullable_is_known_before_openapi_3_1():
    thing = {**THING, "properties": {"name": TEXT, "id": {**TEXT, "nullable": True}}}
    judge = Described(openapi("3.0.1", thing))
    asked = Asked(method="GET", path="/v1/things", params={})
    assert judge.answer(asked, (200, {"name": "a", "id": None})) == []
    assert judge.answer(asked, (200, {"name": None}))


def test_a_missing_description_skips(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("FLEETFORM_SPECS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="FLEETFORM_SPECS"):
        described("none.json")


def test_a_spoiled_body_lacks_or_changes_one_field():
    bodies = list(spoiled({"a": 1}))
    assert {} in bodies
    assert {"a": 1, "unheard_of": 1} in bodies
