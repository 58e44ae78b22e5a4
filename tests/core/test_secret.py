"""A key is sent as it is, and shown as three stars."""

from pytest_runpod.core.secret import Secret


def test_a_secret_is_its_text_and_shows_none_of_it():
    key = Secret("rpa_key")
    assert key == "rpa_key"
    assert f"Bearer {key}" == "Bearer rpa_key"
    assert repr(key) == repr([key])[1:-1] == "'***'"
    assert "rpa_key" not in repr({"header": Secret(f"Bearer {key}")})
