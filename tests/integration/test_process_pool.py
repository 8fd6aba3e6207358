"""``dockless.run`` in a process pool: what it raises and what it returns arrive in the parent."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from support.requires import requires

import dockless
from dockless._result import Result
from dockless.errors import CheckFailed, CommandNotFound


@requires("userns")
def test_a_failing_run_in_a_process_pool_is_that_error_in_the_parent():
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        with pytest.raises(CheckFailed) as caught:
            pool.submit(dockless.run, ["sh", "-c", "echo out; exit 3"], capture_output=True, check=True).result()
        assert caught.value.result.returncode == 3 and caught.value.result.stdout == b"out\n"
        with pytest.raises(CommandNotFound) as missing:
            pool.submit(dockless.run, ["/no/such/command"]).result()
        assert missing.value.exit_code == 127 and missing.value.subject == "/no/such/command"
        result = pool.submit(dockless.run, ["true"]).result()  # the pool still works
        assert isinstance(result, Result) and result.returncode == 0
