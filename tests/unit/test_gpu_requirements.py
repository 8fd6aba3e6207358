"""What an image asks of driver and GPU: NVIDIA_REQUIRE_…"""

from __future__ import annotations

import pynvml
import pytest

from dockless.errors import BadInput, GpuError
from dockless.sandbox.gpus.nvml import brand_names
from dockless.sandbox.gpus.requirements import check, requirements

FACTS = {"cuda": "12.2", "driver": "535.261.03", "arch": "8.0", "brand": "tesla"}
NVIDIA = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 brand=geforce,driver>=535,driver<536"
"""Of nvidia/cuda:12.4: newer drivers, or an older one below a compatible library."""


def holds(text: str, facts: dict[str, str] = FACTS) -> bool:
    try:
        check({"NVIDIA_REQUIRE_CUDA": text}, facts)
    except GpuError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda>=12.2", True), ("cuda>=12.10", False), ("cuda>12.2", False), ("cuda<=12.2", True),
        ("cuda=12.2.0", True), ("cuda!=12.2", False),
        ("driver<535.261.3", False), ("driver<535.300", True), ("arch>=7.5,arch<9", True), ("arch>=9", False),
        ("brand=Tesla", True), ("brand!=tesla", False), (NVIDIA, True),
        ("cuda>=13 cuda>=12", True), ("cuda>=13,cuda>=12", False), ("cuda>=13 driver>=600", False), ("os=plan9", True),
    ],
)  # fmt: skip
def test_a_space_is_or_and_a_comma_is_and(text, expected):
    assert holds(text) is expected


def test_an_older_driver_of_another_brand_does_not_do():
    assert not holds(NVIDIA, FACTS | {"brand": "quadro"})
    assert not holds(NVIDIA, FACTS | {"driver": "545.1"})


def test_what_is_not_known_holds():
    assert holds("cuda>=99", {"cuda": "", "driver": "1"})


def test_the_time_for_them_is_bounded():
    assert holds("cuda>=12 " * 1820)
    with pytest.raises(BadInput, match=r"NVIDIA_REQUIRE_\* have 18000 characters, at most 16384"):
        check({"NVIDIA_REQUIRE_CUDA": "cuda>=12 " * 1000, "NVIDIA_REQUIRE_OTHER": "cuda>=12 " * 1000}, FACTS)


@pytest.mark.parametrize("text", ["cuda", "cuda>=", "cuda>=new", ">=12", "cuda>=12,,driver>=1"])
def test_what_cannot_be_read_is_an_error(text):
    with pytest.raises(BadInput) as error:
        check({"NVIDIA_REQUIRE_CUDA": text}, FACTS)
    assert "NVIDIA_DISABLE_REQUIRE" in error.value.hint


def test_the_error_says_what_is_needed_and_what_there_is():
    with pytest.raises(GpuError) as error:
        check({"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}, FACTS, note=" (simulated)")
    assert str(error.value).startswith("the image needs cuda>=13.0 (NVIDIA_REQUIRE_CUDA); this host has cuda 12.2, driver 535.261.03")
    assert "(simulated)" in str(error.value)


@pytest.mark.parametrize("text", ["cuda>=13.0", "nonsense", "cuda>=x"])
def test_a_variable_with_an_endless_name_makes_no_endless_error(text):
    with pytest.raises((GpuError, BadInput)) as error:
        check({"NVIDIA_REQUIRE_" + "A" * 1_000_000: text}, FACTS)
    assert len(str(error.value)) + len(error.value.subject) < 1000


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {}),
        ({"NVIDIA_REQUIRE_A": "cuda>=12", "NVIDIA_REQUIRE_B": "arch>=8"}, {"NVIDIA_REQUIRE_A": "cuda>=12", "NVIDIA_REQUIRE_B": "arch>=8"}),
        ({"NVIDIA_REQUIRE_CUDA": " "}, {}),
        ({"NVIDIA_REQUIRE_JETPACK": "x"}, {}),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_DISABLE_REQUIRE": "true"}, {}),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12", "NVIDIA_DISABLE_REQUIRE": "0"}, {"NVIDIA_REQUIRE_CUDA": "cuda>=12"}),
        ({"CUDA_VERSION": "9.0.176"}, {"CUDA_VERSION": "cuda>=9.0"}),
        ({"CUDA_VERSION": "12.4.1", "NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}, {"NVIDIA_REQUIRE_CUDA": "cuda>=12.4"}),
        ({"CUDA_VERSION": "12.4.1", "NVIDIA_REQUIRE_CUDA": ""}, {"CUDA_VERSION": "cuda>=12.4"}),
    ],
)  # fmt: skip
def test_which_variables_count(variables, expected):
    assert requirements(variables) == expected


def test_brands_are_written_as_nvidias_images_write_them():
    names = brand_names(pynvml)
    assert {names[number] for number in (pynvml.NVML_BRAND_TESLA, pynvml.NVML_BRAND_NVIDIA, pynvml.NVML_BRAND_GEFORCE_RTX)} == {
        "tesla",
        "nvidia",
        "geforcertx",
    }
