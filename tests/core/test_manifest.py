"""One digest: the same content gives the same one, anything else another one."""

import json

from hypothesis import given
from hypothesis import strategies as st

from pytest_runpod.core.manifest import PackedFile, differing_files, make_payload

FILES = st.lists(
    st.builds(PackedFile, st.text(min_size=1), st.binary(), st.booleans()), unique_by=lambda file: file.path, max_size=8
)
TREE = [PackedFile("b.py", b"y = 2\n"), PackedFile("a/x.py", b"x = 1\n"), PackedFile("run.sh", b"#!/bin/sh\n", True)]
RUN = {"image": "img@sha256:0", "env": ["A"]}


@given(st.data(), FILES)
def test_order_does_not_change_the_digest(data, files):
    shuffled = data.draw(st.permutations(files))
    assert make_payload(files, "w", RUN).sha256 == make_payload(shuffled, "w", RUN).sha256


def test_the_digest_of_a_known_tree_is_known():
    assert (
        make_payload(TREE, "0" * 64, RUN).sha256 == "33feb10bdddf12d59516aa2fc0ea9365bef3fae89fdad197f6b3f60170537499"
    )


def test_every_part_changes_the_digest():
    base = make_payload(TREE, "w", RUN).sha256
    others = [
        make_payload(TREE[:2], "w", RUN),
        make_payload([*TREE[:2], PackedFile("run.sh", b"#!/bin/sh\n", False)], "w", RUN),
        make_payload([*TREE[:2], PackedFile("run.sh", b"#!/bin/sh \n", True)], "w", RUN),
        make_payload(TREE, "w2", RUN),
        make_payload(TREE, "w", {**RUN, "env": ["B"]}),
    ]
    assert len({base, *(other.sha256 for other in others)}) == 6


def test_a_difference_is_named_file_by_file():
    before = make_payload(TREE, "w", RUN)
    after = make_payload(
        [TREE[0], PackedFile("a/x.py", b"x = 2\n"), PackedFile("new.py", b"")], "v", {**RUN, "image": "i"}
    )
    assert differing_files(before.manifest, after.manifest) == (
        "changed a/x.py",
        "added new.py",
        "removed run.sh",
        "changed the worker (worker_sha256)",
        "changed run setting image",
    )


def test_the_manifest_is_plain_json_that_others_can_read():
    value = json.loads(make_payload(TREE, "w", RUN).manifest)
    assert [entry["path"] for entry in value["files"]] == ["a/x.py", "b.py", "run.sh"]
    assert value["files"][2]["mode"] == "0755"
