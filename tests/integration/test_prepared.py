"""Plans that are kept, and those of specs that differ in their command alone. ``run/prepared.py``."""

from __future__ import annotations

import os

import pytest

from dockless.base.healthcheck import HealthCheck
from dockless.images import host_image
from dockless.sandbox import features
from dockless.sandbox.resolve import resolve
from dockless.sandbox.run import prepared as module
from dockless.sandbox.run.prepared import Prepared, prepared
from dockless.sandbox.spec import Spec

pytestmark = pytest.mark.requires("userns")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(module, "_kept", {})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Spec(("true",)), Spec(("sh", "-c", "exit 1"), env=(("A", "1"), ("PATH", "/opt/bin")))),
        (Spec(("true",), env=(("A", "1"),)), Spec(("x",), entrypoint=("env", "--"))),
        (Spec(("true",), profile="untrusted"), Spec(("true",), profile="untrusted", env=(("A", "1"),))),
        (Spec(("true",), health=HealthCheck(("true",))), Spec(("true",), health=HealthCheck(("true",)), env=(("A", "1"),))),
    ],
    ids=["arguments", "entry point", "untrusted", "health"],
)
def test_specs_of_other_commands_share_the_rest_of_their_plan(first, second):
    one, other = prepared(first, host_image()), prepared(second, host_image())
    alone = Prepared(resolve(second, host_image(), features.probe()))
    assert (other.resolved, other.plan) == (alone.resolved, alone.plan)
    assert other.raw(detached=True) == alone.raw(detached=True) != one.raw(detached=True)
    assert (other.rows is one.rows) is (first.health is None)
    assert prepared(second, host_image()) is other and prepared(first, host_image()) is one


def test_specs_that_differ_in_more_share_nothing():
    one, other = prepared(Spec(("true",)), host_image()), prepared(Spec(("true",), hostname="other"), host_image())
    assert one.rows is not other.rows and other.resolved.hostname == "other"


@pytest.mark.requires("root")
def test_a_user_who_is_taken_out_of_a_group_has_no_more_of_it(monkeypatch):
    groups = [[65534, 7], [65534]]
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: groups[0])
    spec = Spec(("true",))
    before = prepared(spec, host_image(), owner=65534)
    assert prepared(spec, host_image(), owner=65534) is before
    groups.pop(0)
    after = prepared(spec, host_image(), owner=65534)
    assert (before.resolved.owner.groups, after.resolved.owner.groups) == ((7,), ())
