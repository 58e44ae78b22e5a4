"""Receipts: written whole, never over another one."""

import pytest

from pytest_runpod.core.lifecycle import Event
from pytest_runpod.core.receipt import Receipt, Where
from pytest_runpod.errors import ReceiptDamaged
from pytest_runpod.store.receipts import ReceiptFile, all_receipts, receipt_path

RECEIPT = Receipt(
    run="r", name="pytest-runpod-1", where=Where("runpod", "https://m", "https://j"), payload_sha256="p", worker_sha256="w",
    created_at=1.0, deadline_at=2.0, ledger="/l",
)  # fmt: skip


def test_a_receipt_is_found_again_by_every_process(tmp_path):
    file = ReceiptFile(receipt_path(tmp_path, "r"))
    file.create(RECEIPT)
    file.write(file.read().after(Event.CREATE_SENT, "2026-01-01T00:00:00Z"))
    (found,) = all_receipts(tmp_path)
    assert found.read().log == ("2026-01-01T00:00:00Z create_sent",)


def test_an_existing_receipt_is_never_overwritten(tmp_path):
    file = ReceiptFile(tmp_path / "r.json")
    file.create(RECEIPT)
    before = file.path.read_bytes()
    with pytest.raises(ReceiptDamaged, match="exists already"):
        file.create(RECEIPT)
    assert file.path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 99}', b"[1]"])
def test_a_damaged_receipt_is_refused_and_left_alone(tmp_path, content):
    file = ReceiptFile(tmp_path / "r.json")
    file.path.write_bytes(content)
    with pytest.raises(ReceiptDamaged, match="cannot be read"):
        file.read()
    assert file.path.read_bytes() == content
