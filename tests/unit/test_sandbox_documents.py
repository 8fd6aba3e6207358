"""What is written down about a sandbox, read whole and in part."""

from __future__ import annotations

import json

import pytest

from dockless.errors import BadInput
from dockless.sandbox.run import documents
from dockless.sandbox.run.documents import Document, Run
from dockless.sandbox.spec import Spec

DOCUMENT = Document(Spec(("true",)), "b", 5.0, 0, cgroup="/sys/fs/cgroup/x", removed=True)


def test_the_part_of_the_last_run_is_that_of_the_whole():
    for document in (DOCUMENT, Document(Spec(), "", 5.0, 0)):
        raw = documents.written(document, b"plan")
        whole, part = documents.parse(raw), documents.parse_run(raw)
        assert part == Run(whole.boot_id, whole.cgroup, whole.removed) and part.begun == whole.begun


@pytest.mark.parametrize("change", [{"boot_id": 5}, {"cgroup": ["x"]}, {"removed": "yes"}, {"boot_id": None}], ids=str)
def test_its_part_is_checked(change):
    values = json.loads(documents.written(DOCUMENT)) | change
    with pytest.raises(BadInput):
        documents.parse_run(json.dumps(values).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"boot_id', b"\xff"], ids=str)
def test_what_is_none_has_no_part(raw):
    with pytest.raises(ValueError):
        documents.parse_run(raw)
