"""``--gpus``: what parses, what is refused, and which GPUs a request becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dockless.errors import BadInput, NotEnoughGpus, UnknownGpu
from dockless.sandbox.gpus.gpu import (
    ALL,
    Gpu,
    GpuProcess,
    GpuRequest,
    MigInstance,
    candidates,
    choose,
    find,
    parse_request,
    possible,
    units,
    why_not_free,
)
from dockless.sandbox.gpus.topology import link

UUID = "GPU-00000000-0000-0000-0000-{:012x}"
MIG = "MIG-00000000-0000-0000-0000-{:012x}"
A, B, SLICE = UUID.format(0), UUID.format(1), MIG.format(0)


def host(count: int = 4, *, group: int = 1, mig: int = 0, foreign: frozenset[int] = frozenset()) -> tuple[Gpu, ...]:
    """Made-up GPUs: NVLink inside groups, the last one divided into ``mig`` slices, foreign processes on some."""
    gpus = []
    for i in range(count):
        near = [
            link(UUID.format(j), "NVLINK" if i // group == j // group else "SYS", 4 if i // group == j // group else 0)
            for j in range(count)
            if j != i
        ]
        divided = bool(mig) and i == count - 1
        slices = tuple(MigInstance(MIG.format(n), n + 1, 0, 10 << 30) for n in range(mig)) if divided else ()
        processes = (GpuProcess(1000 + i, 1 << 30, 1 if divided else None),) if i in foreign else ()
        gpus.append(
            Gpu(
                i,
                UUID.format(i),
                (i + 3) % count,
                "Test GPU",
                80 << 30,
                links=tuple(near),
                mig=slices,
                mig_enabled=divided,
                processes=processes,
            )
        )
    return tuple(gpus)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", GpuRequest(1)),
        (2, GpuRequest(2)),
        (" 3 ", GpuRequest(3)),
        ("all", GpuRequest(ALL)),
        ("count=2", GpuRequest(2)),
        ("count=all", GpuRequest(ALL)),
        ("device=all", GpuRequest(ALL)),
        ("device=0", GpuRequest(0, ("0",))),
        ("device=0,2", GpuRequest(0, ("0", "2"))),
        ('"device=0,2"', GpuRequest(0, ("0", "2"))),
        ("device=0,2,capabilities=compute,utility", GpuRequest(0, ("0", "2"), ("compute", "utility"))),
        ('"device=0,2","capabilities=compute,utility"', GpuRequest(0, ("0", "2"), ("compute", "utility"))),
        ("capabilities=utility,2", GpuRequest(2, (), ("utility",))),
        ("all,capabilities=utility", GpuRequest(ALL, (), ("utility",))),
        ("driver=nvidia", GpuRequest(1, driver="nvidia")),
        ("2,driver=nvidia,options=a=b", GpuRequest(2, driver="nvidia", options=(("a", "b"),))),
        (A, GpuRequest(0, (A,))),
        (f"{A},{B}", GpuRequest(0, (A, B))),
        (f"device={A.upper()}", GpuRequest(0, (A,))),
        (f"device={A},1", GpuRequest(0, (A, "1"))),
        (SLICE, GpuRequest(0, (SLICE,))),
        (f"MIG-{A}/1/0", GpuRequest(0, (f"MIG-{A}/1/0",))),
        ("device=3:1", GpuRequest(0, ("3:1",))),
        ("device=GPU-FEF8089b", GpuRequest(0, ("GPU-fef8089b",))),
        ("GPU-fef8,MIG-fef8089b-", GpuRequest(0, ("GPU-fef8", "MIG-fef8089b-"))),
        ("device=nvidia.com/gpu=0", GpuRequest(0, ("0",))),
        ("nvidia.com/gpu=0,nvidia.com/gpu=3:1", GpuRequest(0, ("0", "3:1"))),
        (f"device=nvidia.com/gpu={A},1", GpuRequest(0, (A, "1"))),
        ("device=nvidia.com/gpu=all", GpuRequest(ALL)),
    ],
)
def test_parses(text, expected):
    assert parse_request(text) == expected


WRONG = [
    *("", " ", ",", 0, -2, "\x00", "1\n2", "²", "٣", True, None, 1.0, '"device=0', 'device="0"x"', f"{A},2", f"2,{A}"),
    *("0", "-2", "count=0", "device=", "device=,", "two", "1.5", "1e3", "99999999", "+1", "2,3", "2,count=3", "count=2,device=0", "GPU-"),
    *("device=0,all", "device=0,0", "device=0,00", "device=0,device=1", "device=-1", "device=../../dev/sda", "device=nvidia0"),
    *(
        "device=GPU-123",
        "GPU-123456789",
        "device=GPU-1234/1",
        "nvidia.com/gpu=x",
        "nvidia.com/gpu=0,0",
        "capabilities=fly",
        "capabilities=",
        "driver=amd",
        "options=a",
        "x=1",
        "count=",
        "all,all",
    ),
]


@pytest.mark.parametrize("text", WRONG)
def test_refuses(text):
    with pytest.raises(BadInput) as error:
        parse_request(text)
    assert error.value.hint


@pytest.mark.parametrize("text", ["-1", -1, "count=-1"])
def test_docker_s_word_for_every_gpu(text):
    """Nobody takes all of a shared host by a sign."""
    with pytest.raises(BadInput) as caught:
        parse_request(text)
    assert "--gpus all" in caught.value.hint


def test_the_beginning_of_a_uuid_is_enough_where_it_is_one_s_alone():
    gpus = tuple(replace(gpu, uuid=f"GPU-{start}-0000-0000-0000-000000000000") for gpu, start in zip(
        host(4), ("fef8089b", "fef80000", "12345678", "abcdef01"), strict=True))  # fmt: skip
    gpus = (*gpus[:3], replace(gpus[3], mig=(MigInstance(SLICE, 1, 0, 10 << 30),), mig_enabled=True))
    for text, uuid in (("device=GPU-fef8089", 0), ("GPU-1234", 2), ("gpu-FEF80000-0000-0", 1)):
        assert [unit.uuid for unit in choose(parse_request(text), gpus)] == [gpus[uuid].uuid]
    assert [unit.uuid for unit in choose(parse_request("MIG-0000"), gpus)] == [SLICE]
    with pytest.raises(BadInput) as caught:
        choose(parse_request("GPU-fef8"), gpus)
    assert gpus[0].uuid in str(caught.value) and gpus[1].uuid in str(caught.value) and caught.value.hint
    with pytest.raises(BadInput, match="twice"):
        choose(parse_request("GPU-fef8089b,GPU-fef8089"), gpus)
    with pytest.raises(UnknownGpu, match="divided by MIG"):
        choose(parse_request("GPU-abcd"), gpus)
    with pytest.raises(UnknownGpu, match="no GPU GPU-9999"):
        choose(parse_request("GPU-9999"), gpus)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_bad_input(text):
    try:
        request = parse_request(text)
    except BadInput:
        return
    assert (request.count == 0) == bool(request.devices)


# ---- choosing -------------------------------------------------------------------------------------------------------------------------


def indices(gpus):
    return [gpu.index for gpu in gpus]


def test_n_means_n_free_ones():
    gpus = host(4, foreign=frozenset({0}))
    assert indices(choose(parse_request(2), gpus, {UUID.format(1)})) == [2, 3]


def test_neighbours_are_preferred():
    gpus = host(8, group=4)
    busy = {UUID.format(i) for i in (0, 1, 2)}  # 3 is left over of the first group
    assert indices(choose(parse_request(2), gpus, busy)) == [4, 5]
    assert indices(choose(parse_request(4), gpus, busy)) == [4, 5, 6, 7]


def test_a_single_gpu_comes_from_the_broken_group():
    assert indices(choose(parse_request(1), host(4, group=2), {UUID.format(3)})) == [2]


@pytest.mark.parametrize(
    ("text", "busy", "words"),
    [
        ("5", (), ("5 GPUs", "4 in all", "at most 4")),
        ("3", (A, B), ("2 of 4 free", "GPU 0 is leased", "GPU 1 is leased")),
        ("all", (A,), ("3 of 4 free", "GPU 0 is leased")),
        ("device=0", (A,), ("0 of 1 free", "GPU 0 is leased")),
    ],
)
def test_not_enough_says_who_has_them(text, busy, words):
    with pytest.raises(NotEnoughGpus) as error:
        choose(parse_request(text), host(4), busy)
    said = f"{error.value} {error.value.hint}"
    assert all(word in said for word in words), said


def test_a_foreign_process_is_named():
    with pytest.raises(NotEnoughGpus, match="1 of 2 free") as error:
        choose(parse_request(2), host(2, foreign=frozenset({1})))
    assert "GPU 1 is used by process 1001" in error.value.hint


@pytest.mark.parametrize("text", ["device=4", "device=0,9", UUID.format(9), MIG.format(9), "device=0:0", "device=3:9"])
def test_an_unknown_gpu_is_named_with_those_that_exist(text):
    with pytest.raises(UnknownGpu) as error:
        possible(parse_request(text), host(4))
    assert "0, 1, 2, 3" in error.value.hint


@pytest.mark.parametrize("text", ["1", "all"])
def test_a_host_without_gpus(text):
    with pytest.raises(NotEnoughGpus, match="0 in all"):
        possible(parse_request(text), ())


def test_the_same_gpu_by_two_names():
    with pytest.raises(BadInput, match="twice"):
        choose(parse_request(f"device=0,{A}"), host(2))


def test_named_gpus_come_in_the_order_named():
    assert indices(choose(parse_request("device=2,0"), host(4))) == [2, 0]


def test_mig_slices_are_units_and_their_gpu_is_not():
    gpus = host(3, mig=2, foreign=frozenset({2}))  # the process is in the slice of GPU instance 1
    found = units(gpus)
    assert [unit.uuid for unit in found] == [A, B, MIG.format(0), MIG.format(1)]
    assert [why_not_free(unit, ()) != "" for unit in found] == [False, False, True, False]
    assert all(unit.parent == UUID.format(2) and unit.minor == gpus[2].minor for unit in found[2:])
    assert possible(parse_request("all"), gpus) == 4
    assert possible(parse_request("2"), gpus) == 2
    with pytest.raises(NotEnoughGpus) as error:
        possible(parse_request("3"), gpus)
    assert "MIG" in error.value.hint
    with pytest.raises(UnknownGpu, match="divided") as unknown:
        possible(parse_request("device=2"), gpus)
    assert SLICE in unknown.value.hint
    for name in (MIG.format(1), "device=2:1", f"MIG-{UUID.format(2)}/2/0"):
        assert [unit.uuid for unit in choose(parse_request(name), gpus)] == [MIG.format(1)]
    assert why_not_free(found[3], {UUID.format(2)}) == "is leased"
    assert units(found) == found


def test_find_gives_the_leased_units_back():
    gpus = host(3, mig=2)
    assert [unit.uuid for unit in find([SLICE, A.upper().replace("GPU", "GPU")], gpus)] == [SLICE, A]
    with pytest.raises(UnknownGpu):
        find([UUID.format(9)], gpus)


@st.composite
def situations(draw):
    count = draw(st.integers(0, 10))
    numbers = st.sets(st.integers(0, max(count - 1, 0)))
    gpus = host(count, group=draw(st.sampled_from([1, 2, 4])), mig=draw(st.integers(0, 3)), foreign=frozenset(draw(numbers)))
    names = [unit.uuid for unit in units(gpus)]
    busy = draw(st.sets(st.sampled_from(names))) if names else set()
    wish = st.one_of(
        st.integers(1, 11).map(str),
        st.just("all"),
        st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True).map(lambda ids: "device=" + ",".join(map(str, ids))),
        *([st.sampled_from(names)] if names else []),
    )
    return parse_request(draw(wish)), gpus, busy


@given(situations())
def test_choose_never_gives_a_busy_gpu_nor_more_than_asked(situation):
    request, gpus, busy = situation
    free = {unit.uuid for unit in units(gpus) if not why_not_free(unit, busy)}
    try:
        chosen = choose(request, gpus, busy)
    except (NotEnoughGpus, UnknownGpu) as error:
        assert error.hint
        if request.count > 0:  # refused only if there really are too few
            whole = {unit.uuid for unit in units(gpus) if not unit.parent}
            assert len(whole & free) < request.count
        return
    names = [unit.uuid for unit in chosen]
    assert set(names) <= free
    assert len(set(names)) == len(names) == possible(request, gpus)
    assert request.count in (0, ALL, len(names))
    assert choose(request, gpus, busy) == chosen


# ---- memory -----------------------------------------------------------------------------------------------------------------------


def sized(*sizes: int, slices: tuple[int, ...] = ()) -> tuple[Gpu, ...]:
    """Whole GPUs of these GiB, and one more that is divided into slices of these."""
    whole = [Gpu(i, f"GPU-00000000-0000-0000-0000-00000000000{i}", i, "m", size << 30) for i, size in enumerate(sizes)]
    parts = tuple(MigInstance(f"MIG-00000000-0000-0000-0000-00000000000{i}", i, 0, size << 30) for i, size in enumerate(slices))
    last = Gpu(len(sizes), "GPU-00000000-0000-0000-0000-00000000000f", 9, "m", 80 << 30, mig=parts, mig_enabled=True)
    return (*whole, last) if slices else tuple(whole)


@pytest.mark.parametrize(
    ("wanted", "busy", "chosen"),
    [
        ("memory=10G", (), "MIG-1"),  # the smallest slice that has it
        ("memory=11G", (), "MIG-0"),
        ("memory=10G", ("MIG-1",), "MIG-0"),
        ("memory=21G", (), "GPU-1"),  # no slice has: the smallest GPU that does
        ("memory=10G", ("MIG-0", "MIG-1"), "GPU-1"),
        ("memory=41G", (), "GPU-0"),
        ("count=2,memory=30G", (), "GPU-0 GPU-1"),  # of several each is whole
        ("device=0,memory=80G", (), "GPU-0"),
    ],
)
def test_memory_is_had_by_best_fit(wanted, busy, chosen):
    inventory = sized(80, 40, slices=(20, 10))
    names = {f"{unit.uuid[:4]}{unit.uuid[-1]}": unit.uuid for unit in units(inventory)}
    found = choose(parse_request(wanted), inventory, [names[name] for name in busy])
    assert [unit.uuid for unit in found] == [names[name] for name in chosen.split()]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ("memory=81G", "1 GPU with 81 GiB asked for, the largest of this host has 80 GiB"),
        ("count=2,memory=50G", "2 GPUs with 50 GiB asked for, this host has 1 in all"),
        ("device=1,memory=50G", "has 40 GiB"),
    ],
)
def test_memory_that_no_gpu_has(wanted, why):
    with pytest.raises(NotEnoughGpus, match=why) as caught:
        choose(parse_request(wanted), sized(80, 40, slices=(20, 10)))
    assert caught.value.hint


@pytest.mark.parametrize("wanted", ["memory=", "memory=0", "memory=x", "all,memory=1G", "memory=1G,memory=2G"])
def test_memory_that_cannot_be_read(wanted):
    with pytest.raises(BadInput):
        parse_request(wanted)


def of_models(*models: str) -> tuple[Gpu, ...]:
    """The last one is divided: two slices of one profile, one of another, and one whose profile is not told."""
    names = ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG")
    parts = tuple(MigInstance(MIG.format(n), n + 1, 0, (40 if n == 2 else 10) << 30, name) for n, name in enumerate(names))
    gpus = [Gpu(number, UUID.format(number), number, model, 80 << 30) for number, model in enumerate(models)]
    return (*gpus, Gpu(len(gpus), UUID.format(len(gpus)), 9, "NVIDIA H100 80GB HBM3", 80 << 30, mig=parts, mig_enabled=True))


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        ("class=H100", (0, 1)),
        ("class=h100-80gb", (0,)),
        ("class=NVIDIA A100", (2,)),
        ("class=A10", ()),
        ("class=80GB H100", ()),
        ("class=whole", (0, 1, 2)),
        ("class=1g.10gb", (3, 4)),
        ("class=1G.10GB", (3, 4)),
        ("class=3g.40gb", (5,)),
        ("class=1g.10gb+me", ()),
        ("class=H100,memory=60G", (0,)),
        ("class=1g.10gb,memory=20G", ()),
        ("2,class=1g.10gb", (3, 4)),
        ("all,class=H100", (0, 1)),
    ],
)
def test_of_a_class(wanted, indices):
    host = of_models("NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-80GB")
    host = (host[0], replace(host[1], memory=48 << 30), *host[2:])
    request, there = parse_request(wanted), units(host)
    assert candidates(request, host) == tuple(there[index] for index in indices)
    if indices:
        chosen = choose(request, host)
        assert set(chosen) <= {there[index] for index in indices} and len(chosen) == possible(request, host)
    else:
        with pytest.raises(NotEnoughGpus) as caught:
            choose(request, host)
        assert caught.value.hint


def test_the_classes_of_a_host_are_said():
    with pytest.raises(NotEnoughGpus) as caught:
        possible(parse_request("3,class=1g.10gb"), of_models("NVIDIA L4"))
    assert str(caught.value) == "3 GPUs of class 1g.10gb asked for, this host has 2 of it"
    assert caught.value.hint == "its GPUs are 1 NVIDIA L4, 2 1g.10gb, 1 3g.40gb, 1 MIG"
    with pytest.raises(NotEnoughGpus) as caught:
        possible(parse_request("class=L4"), ())
    assert "doctor" in caught.value.hint


@pytest.mark.parametrize("wanted", ["class=", "class=-x", "device=0,class=H100", "class=a,class=b", "class=é", f"class={'x' * 65}"])
def test_what_is_no_class(wanted):
    with pytest.raises(BadInput):
        parse_request(wanted)
