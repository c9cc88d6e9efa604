"""What the observer reads of a script's tensors and variables, and that it keeps none of them."""

import sys
import weakref

import torch

from ddp_audit import say_asked, step
from ddp_audit.observer.clocks import _list_floats
from ddp_audit.observer.samples import count_tokens, digest_rows, digest_tensors, is_on_host, put_rows_first, read_rows


def test_a_row_is_the_same_wherever_its_padding_stands():
    row = torch.tensor([[256, 7, 0, 65536]])
    for padding in ((0, 3), (3, 0)):
        assert digest_rows(torch.nn.functional.pad(row, padding)) == digest_rows(row)
    assert digest_rows(torch.tensor([[256, 7, 0, 65537]])) != digest_rows(row)
    # A mask knows better which zeros are padding, of whatever type it is.
    padded = torch.tensor([[5, 0, 0, 9], [5, 0, 0, 0]])
    for kind in (torch.int64, torch.bool, torch.float32):
        mask = torch.tensor([[1, 1, 1, 0]] * 2, dtype=kind)
        assert digest_rows(padded, mask) == digest_rows(padded[:, :3], torch.ones(2, 3))
    assert digest_rows(torch.zeros(1, 4, dtype=torch.int64)) != digest_rows(torch.zeros(1, 5, dtype=torch.int64))


def test_a_row_is_known_by_its_ids_wherever_they_stand_and_has_as_many_as_are_no_padding():
    names = ["0.labels", "1.attention_mask", "1.pixels", "1.input_ids", "2"]
    found = [name for name, _ in put_rows_first([(name, torch.ones(1)) for name in names])]
    assert found == ["1.input_ids", "1.pixels", "2", "0.labels", "1.attention_mask"]
    rows = torch.tensor([[5, 0, 7, 0], [0, 0, 0, 0]])
    assert count_tokens(rows, None) == [3, 0]
    assert count_tokens(rows, torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0]])) == [4, 1]
    # Padding may be any id.
    assert count_tokens(torch.tensor([[5, 9, 9, 9], [5, 9, 7, 9]]), None) == [1, 4]


def test_a_row_is_the_same_however_it_lies_in_memory():
    for rows in (torch.arange(600).reshape(3, 200), torch.arange(3 * 5000.0).reshape(3, 5000)):
        assert digest_rows(rows.t().contiguous().t()) == digest_rows(rows)
        assert len(set(digest_rows(rows))) == 3
        for most in (64, 1 << 20):
            assert read_rows(rows.t().contiguous().t(), most) == read_rows(rows, most)
    assert read_rows(torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8), 2) == [b"\1\2", b"\4\5"]


def test_tensors_are_digested_by_64_evenly_spread_elements():
    large = torch.arange(64 * 100.0)
    found = digest_tensors([large, large.reshape(80, 80).t(), torch.tensor([2, 3])])
    # All of one type, or not; a parameter, or not.
    assert found["digests"][0] == digest_tensors([torch.nn.Parameter(large[::100].clone())])["digests"][0]
    assert len(set(found["digests"])) == 3
    large[100] += 1
    assert digest_tensors([large])["digests"][0] != found["digests"][0]
    assert digest_tensors([torch.full((2,), 3.0), torch.full((1,), 4.0)])["l2"] == 34**0.5
    # Of a sparse one, what there is.
    sparse = torch.sparse_coo_tensor([[5, 5]], torch.tensor([[1.0], [2.0]]), (1000, 1))
    assert digest_tensors([sparse])["l2"] == 3


def test_only_elements_that_lie_in_memory_are_read():
    assert is_on_host(torch.nn.Parameter(torch.ones(2)))
    assert not is_on_host(torch.ones(2, 2).to_sparse())
    assert not is_on_host(torch.ones(2, device="meta"))


def test_reading_a_clock_keeps_nothing_that_the_script_has_let_go_and_leaves_what_it_has_asked_for():
    class Logits:
        pass

    def train():
        logits, _began = Logits(), 1.5
        is_there = weakref.ref(logits)
        _list_floats(sys._getframe())
        logits = None
        return is_there() or logits

    def ask(rate):
        arguments = locals()
        _list_floats(sys._getframe())
        return arguments

    assert train() is None
    assert ask(0.5)["rate"] == 0.5


def test_without_an_audit_what_a_script_says_does_nothing():
    with step(ids=[1, 2]):
        say_asked(epochs=3)
