"""History, inspection, search."""

from __future__ import annotations

import json

import pytest
from support import make_image as make
from support.layers import load

from dockless.errors import BadImage, BadInput, UnknownImage
from dockless.images import Store
from dockless.images.catalog.history import history, inspect, search

LAYERS = [[make.file("a", "12345")], [make.file("b", "1")]]


def test_history_is_told_with_its_layers(tmp_path):
    told = [
        {"created": "2020-01-01T00:00:00Z", "created_by": "ADD a"},
        {"created": "2020-01-02T00:00:00Z", "created_by": "ENV x", "empty_layer": True},
        {"created": "2020-01-03T00:00:00Z", "created_by": "ADD b", "comment": "c"},
    ]
    image = load(tmp_path, LAYERS, history=told)
    steps = history(Store(), image)
    assert [(step.created_by, step.empty, step.size, step.comment, step.author) for step in steps] == [
        ("ADD b", False, 1, "c", ""),
        ("ENV x", True, 0, "", ""),
        ("ADD a", False, 5, "", ""),
    ]
    assert steps[1].digest == "" and steps[0].stored > 0 and steps[0].digest.startswith("sha256:")


@pytest.mark.parametrize("told", [None, [], [{"created_by": "one"}], [{"created_by": "x", "empty_layer": True}] * 3])
def test_a_history_that_does_not_fit(tmp_path, told):
    steps = history(Store(), load(tmp_path, LAYERS, history=told))
    assert [(step.created_by, step.size) for step in steps] == [("", 1), ("", 5)]


@pytest.mark.parametrize("told", ["text", [5, 6], [{"author": 5}]])
def test_a_history_that_is_none(tmp_path, told):
    with pytest.raises(BadImage, match="history"):
        load(tmp_path, LAYERS, history=told)


def test_inspection_is_plain_data(tmp_path):
    image = load(tmp_path, LAYERS, config={"Labels": {"a": "1"}, "Env": ["X=y"]}, ref="one:1")
    Store().register({}, {"docker.io/library/two:2": image.digest})
    found = json.loads(json.dumps(inspect(Store(), "one:1")))
    assert found["tags"] == ["docker.io/library/one:1", "docker.io/library/two:2"] and found["digest"] == image.digest
    assert found["config"]["labels"] == {"a": "1"} and found["config"]["env"] == ["X=y"] and found["runs_here"] is True
    assert [layer["size"] for layer in found["layers"]] == [5, 1] and all(layer["kept"] and layer["form"] for layer in found["layers"])
    assert found["layers"][0]["diff_id"] == found["layers"][0]["chain_id"] != found["layers"][0]["digest"]
    assert found["configuration"]["config"]["Env"] == ["X=y"] and found["manifest"]["schemaVersion"] == 2


def test_search(tmp_path):
    load(tmp_path, LAYERS[:1], ref="registry.example/team/python:3.12", config={"Labels": {"maintainer": "Ada Lovelace"}})
    load(tmp_path, LAYERS, ref="cpython:1", config={"Labels": {"gpu": "yes"}})
    load(tmp_path, LAYERS[1:], ref=None)

    def names(text):
        return [image.reference for image in search(Store(), text)]

    assert names("Python") == ["registry.example/team/python:3.12", "docker.io/library/cpython:1"]
    assert names("ada love") == names("maintainer") == names("team/py") == ["registry.example/team/python:3.12"]
    assert names("gpu=yes") == ["docker.io/library/cpython:1"] and names("ruby") == []
    with pytest.raises(BadInput):
        search(Store(), "  ")


def test_what_is_not_there():
    with pytest.raises(UnknownImage):
        inspect(Store(), "none:1")
    with pytest.raises(BadInput):
        history(Store(), "host")
