"""Which cards a rehearsal knows, and how others are described."""

import pytest

from tasks.process.failure import ConfigurationError
from tasks.rehearsal.cards import parse_gpu


def test_a_card_can_be_described_by_its_figures():
    number, card = parse_gpu("4x 48GB,864GB/s,181TFLOP/s")
    assert number == 4
    assert card.memory_gib == pytest.approx(0.93 * 48e9 / 2**30)
    assert (card.gb_per_second, card.tflops, card.link_gb_per_second) == (864, 181, None)
    assert card.find_tflops("bf16") == 181
    assert card.find_tflops("fp32") is None, "not guessed"
    assert parse_gpu("48GB, 864GB/s, 181TFLOP/s, link 32GB/s")[1].link_gb_per_second == 32


@pytest.mark.parametrize(
    "text", ["", "H100", "0x T4", "2x", "48GB", "0GB,864GB/s,181TFLOP/s", "1.2.3GB,1GB/s,1TFLOP/s"]
)
def test_anything_else_is_refused_with_what_is_allowed(text):
    with pytest.raises(
        ConfigurationError, match=r"GPU: got .*; allowed: A100-40, A100-80, H100-80, H200, B200, A10G, L4"
    ):
        parse_gpu(text)
