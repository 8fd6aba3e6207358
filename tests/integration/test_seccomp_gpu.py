"""CUDA under the filters: the driver starts, makes a context, allocates and copies."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

import pytest
from support.requires import requires

from dockless.sandbox.capabilities import DEFAULT
from dockless.sandbox.seccomp import seccomp

pytestmark = requires("gpu")


def _cuda() -> str:
    """A round trip through device memory by the driver's own interface; "" if all went well."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    data, back = ctypes.create_string_buffer(b"x" * 65536), ctypes.create_string_buffer(65536)
    for name, *arguments in (
        ("cuInit", 0),
        ("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0),
        ("cuCtxSetCurrent", context),
        ("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(65536)),
        ("cuMemcpyHtoD_v2", memory, data, ctypes.c_size_t(65536)),
        ("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(65536)),
    ):
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            return f"{name}: CUDA error {result}"
    return "" if back.raw == data.raw[:65536] else "the bytes that came back differ"


@pytest.mark.parametrize("untrusted", [False, True])
def test_cuda_works_inside(untrusted):
    program = seccomp.compile_profile(seccomp.default_profile(untrusted), frozenset() if untrusted else DEFAULT, platform.machine())
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            code = ctypes.create_string_buffer(program)
            fprog = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
            assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
            assert libc.prctl(22, 2, fprog, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
            said = _cuda()
        except BaseException as error:
            said = repr(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert said == "" and status == 0
