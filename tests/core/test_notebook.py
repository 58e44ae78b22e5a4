"""Running a notebook must not change what was approved."""

import json

from pytest_runpod.core.notebook import strip_notebook


def notebook(**cell) -> dict:
    base = {
        "cell_type": "code",
        "id": "c0",
        "metadata": {"tags": ["keep"]},
        "source": "x = 1",
        "outputs": [],
        "execution_count": None,
    }
    return {
        "cells": [{**base, **cell}],
        "metadata": {"kernelspec": {"name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def encoded(value: dict, **layout) -> bytes:
    return json.dumps(value, **layout).encode()


def test_outputs_counts_and_widgets_go_and_the_rest_stays():
    ran = notebook(outputs=[{"output_type": "stream", "name": "stdout", "text": "secret"}], execution_count=7)
    ran["metadata"]["widgets"] = {"state": {}}
    assert strip_notebook(encoded(ran, indent=4)) == strip_notebook(encoded(notebook()))
    assert json.loads(strip_notebook(encoded(ran))) == notebook()


def test_stripping_twice_is_stripping_once():
    once = strip_notebook(encoded(notebook(source="é\u2028 'x'")))
    assert strip_notebook(once) == once
    assert "é".encode() in once


def test_what_is_no_notebook_is_left_alone():
    for source in (b"{this is not json", b"[]", b'{"cells": 3}', b"\xff\xfe", b'{"cells": [], "x": NaN}'):
        assert strip_notebook(source) == source
