"""Strategies whose ranks share the state out: what they are equal to, to the bit."""

import pytest

from tests.training.conftest import Toy, Trained, are_bitwise_equal, facts_of, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = pytest.mark.slow


def test_what_fsdp2_gathers_in_many_exchanges_is_the_same_though_ranks_have_other_numbers_of_rows(
    trained: Trained, ranks: ForkedRanks, toy: Toy
) -> None:
    # 128 rows of the embedding on 3 ranks: 43, 43 and 42.
    spread = {"strategy": "fsdp2", "world_size": 3, "global_batch_size": 12}
    at_once, in_parts = trained(**spread), toy.tell(**spread)
    codes = ranks.launch(in_parts, entry="tests.training.small_exchanges")
    assert codes == [0] * 3, last_words(in_parts)
    assert are_bitwise_equal(weights_at_end(at_once), weights_at_end(in_parts))
    for what in ("parameter_checksums", "optimizer_checksums"):
        assert facts_of(at_once)[what] == facts_of(in_parts)[what]
