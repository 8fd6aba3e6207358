"""The plan of what enters: made of the sandbox's own, and of nothing else. A plan read back from its bytes."""

from __future__ import annotations

from functools import partial

import pytest
from tests.support.plan_cases import CASES

from dockless.base.dataclass import replace
from dockless.errors import BadInput
from dockless.native import validate
from dockless.sandbox.accounts import Account
from dockless.sandbox.compile import compile_plan
from dockless.sandbox.enter import Entry, compile_entry, compile_look
from dockless.sandbox.plan.plan import SLOT_CGROUP, SLOT_TERMINAL, Op, Plan, decode, encode
from dockless.sandbox.run.door import Entrance, _compiled
from dockless.sandbox.run.process import gone
from dockless.sandbox.spec import RLIMITS

MOUNT_NAMESPACE = 0x20000


@pytest.fixture(params=sorted(CASES))
def plan(request) -> Plan:
    return compile_plan(CASES[request.param])


def program_of(plan: Plan) -> list[Op]:
    return [op for op in plan.ops[names(plan).index("SPAWN") + 1 :] if op.name != "PDEATHSIG"]


def names(plan: Plan) -> list[str]:
    return [op.name for op in plan.ops]


def test_the_program_section_is_the_sandboxs_own(plan):
    entered = compile_entry(plan, Entry(("true",)), has_cgroup=True)
    assert program_of(entered) == [replace(op, x=0) if op.name == "SETSID" else op for op in program_of(plan)]
    assert entered.command.envp == plan.command.envp


def test_it_enters_every_namespace_of_the_sandbox_the_mounts_last(plan):
    handed = next(op.x for op in plan.ops if op.name == "HAND_OVER")
    entered = [op for op in compile_entry(plan, Entry(("true",)), has_cgroup=False).ops if op.name == "SETNS"]
    assert sum(op.x for op in entered) == handed and entered[-1].x == MOUNT_NAMESPACE
    assert len({op.slot_in for op in entered}) == len(entered)


def test_nothing_is_looked_up_on_the_way_but_the_terminal(plan):
    """Every path is one that root inside may have changed."""
    entered = compile_entry(plan, Entry(("true",), tty=True), has_cgroup=True)
    before = entered.ops[: names(entered).index("SPAWN")]
    assert {op.a for op in before if isinstance(op.a, str)} <= {"/dev/pts/ptmx", "/proc/self/oom_score_adj"}
    terminal, setns = names(entered).index("TERMINAL"), max(at for at, op in enumerate(before) if op.name == "SETNS")
    assert terminal > setns and entered.ops[terminal].slot_in == SLOT_TERMINAL


def test_another_user_has_her_ids_and_root_alone_has_capabilities(plan):
    kept = next(op.x for op in plan.ops if op.name == "BOUNDING")
    for uid, held in ((7, 0), (0, kept)):
        entered = compile_entry(plan, Entry(("true",), account=Account(uid, 8, (9,), "/home/x")), has_cgroup=True)
        mine = {op.name: op for op in program_of(entered)}
        assert (mine["SET_IDS"].x, mine["SET_IDS"].b) == (uid | 8 << 32, b"\t\0\0\0")
        assert (mine["CAPS"].x, mine["BOUNDING"].x) == (held, kept)
        assert dict(v.partition("=")[::2] for v in entered.command.envp)["HOME"] == "/home/x"


def test_variables_directory_time_and_program():
    plan = compile_plan(CASES["root"])
    entry = Entry(("prog", "a"), (("PATH", "/x:relative:/y"), ("NEW", "1")), "/there/../here", None, 2.5)
    entered = compile_entry(plan, entry, has_cgroup=False)
    assert entered.command.candidates == ("/x/prog", "/y/prog") and entered.command.argv == ("prog", "a")
    assert entered.command.envp == ("PATH=/x:relative:/y", "NEW=1") and entered.timeout == 2.5
    assert next(op.a for op in entered.ops if op.name == "CHDIR") == "/here"
    assert compile_entry(plan, Entry(("x",), given=True), has_cgroup=False).command.candidates == ("",)


def test_streams_of_somebody_else_come_when_it_is_the_programs_process(plan):
    entered = names(compile_entry(plan, Entry(("true",), handed=True), has_cgroup=True))
    spawned = entered.index("SPAWN")
    assert entered[spawned + 1 : spawned + 3] == ["PDEATHSIG", "STREAMS"]
    assert "STREAMS" not in names(compile_entry(plan, Entry(("true",), handed=True, tty=True), has_cgroup=True))


@pytest.mark.parametrize("account", [Account(-1, 0), Account(0, 2**31), Account(0, 0, (2**32,))])
def test_numbers_that_are_no_ids(account):
    with pytest.raises(BadInput, match="out of range"):
        Entry(("true",), account=account)


def test_its_cgroup_and_without_one_its_mark():
    plan = compile_plan(CASES["user"])
    inside, outside = (compile_entry(plan, Entry(("true",)), has_cgroup=has) for has in (True, False))
    assert [next(op.slot_in for op in one.ops if op.name == "CLONE") for one in (inside, outside)] == [SLOT_CGROUP, -1]
    assert [names(one).count("MARK") for one in (inside, outside)] == [0, 1]
    assert names(outside)[names(outside).index("MARK") + 1] == "SPAWN"
    ends = compile_entry(plan, Entry(("true",), ends=True), has_cgroup=False)
    look = compile_look(plan, compile_plan(CASES["root"]), Entry(("true",)), has_cgroup=False, write=False)
    assert [next(op.x for op in one.ops if op.name == "MARK") for one in (outside, ends, look)] == [0, 1, 1]


def test_a_low_limit_of_its_own_comes_before_the_mark():
    plan = compile_plan(CASES["user"])
    at = names(plan).index("BOUNDING")
    own = [Op("RLIMIT", a=bytes(16), c=RLIMITS[name]) for name in ("locks", "nofile", "rttime")]
    limited = replace(plan, ops=(*plan.ops[:at], *own, *plan.ops[at:]))
    entered = compile_entry(limited, Entry(("true",)), has_cgroup=False)
    spawn = names(entered).index("SPAWN")
    assert entered.ops[spawn - 3 : spawn - 1] == (own[0], own[2]) and names(entered)[spawn - 1] == "MARK"
    assert [op for op in program_of(entered) if op.name == "RLIMIT"] == [own[1]]
    assert [op for op in program_of(compile_entry(limited, Entry(("true",)), has_cgroup=True)) if op.name == "RLIMIT"] == own


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"argv": ()}, "the command is empty"),
        ({"argv": ("",)}, "the command is empty"),
        ({"argv": ("x",), "workdir": "there"}, "working directory 'there' is not absolute"),
        ({"argv": ("x",), "env": (("A=B", "1"),)}, "environment name 'A=B' is empty or contains '='"),
        ({"argv": ("x",), "timeout": -1.0}, "timeout -1.0 seconds is out of range"),
        ({"argv": ("x\0",)}, "argv[0] contains a NUL byte"),
    ],
)
def test_what_is_wrong(wrong, said):
    with pytest.raises(BadInput) as error:
        compile_entry(compile_plan(CASES["root"]), Entry(**wrong), has_cgroup=False)
    assert str(error.value) == said


def test_the_launcher_takes_it_and_it_can_be_explained(plan):
    from dockless.sandbox.plan.explain import rows

    for tty in (False, True):
        entered = compile_entry(plan, Entry(("true",), tty=tty), has_cgroup=True)
        assert validate(encode(entered, enters=True)) == (True, -1)
        assert all(row.words for row in rows(entered))


def test_a_plan_is_read_back_as_it_was(plan):
    again = decode(encode(plan))
    assert names(again) == names(plan) and again.command == plan.command
    assert (again.timeout, again.grace, again.stop_signal, again.log_limit) == (plan.timeout, plan.grace, plan.stop_signal, plan.log_limit)
    assert encode(again) == encode(plan)


@pytest.mark.parametrize("cut", [0, 1, 135, 136, 500, -1])
def test_what_is_no_plan_is_said(cut):
    with pytest.raises(ValueError, match="it is no plan"):
        decode(encode(compile_plan(CASES["root"]))[:cut])


ENTRIES = (
    Entry(("true",)),
    Entry(("ls", "-l"), env=(("A", "b"),), timeout=3.0),
    Entry(("true",), workdir="/tmp"),
    Entry(("true",), account=Account(7, 8, (9,), "/home/x")),
    Entry(("true",), account=Account(0, 0, (), "/root")),
    Entry(("true",), tty=True),
    Entry(("true",), handed=True),
    Entry(("true",), handed=True, tty=True),
    Entry(("agent",), given=True),
    Entry(("true",), ends=True),
)


def test_what_was_compiled_for_one_serves_the_next(tmp_path):
    """What is kept of those who entered before changes nothing of who enters next."""
    plan = compile_plan(CASES["root"])
    place = Entrance("s-1", tmp_path, plan, None, "", 0, lambda: -1, partial(gone, "s-1"))
    for entry in (*ENTRIES, *reversed(ENTRIES)):
        for has_cgroup in (True, False):
            fresh = compile_entry(plan, entry, has_cgroup=has_cgroup)
            kept, rows = _compiled(place, entry, has_cgroup)
            raw = encode(kept, enters=True, rows=rows)
            assert kept == fresh and decode(raw) == decode(encode(fresh, enters=True))
    assert len(place.ways) < 2 * len(ENTRIES)
