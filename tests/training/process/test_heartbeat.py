"""What a rank says of where it is."""

from pathlib import Path

from training.process.heartbeat import NUM_WORDS, PID, POSITION, Heartbeat, StepSection, decode_position


def _words(file: Path, rank: int) -> list[int]:
    words = memoryview(file.read_bytes()).cast("q").tolist()
    return words[rank * NUM_WORDS : (rank + 1) * NUM_WORDS]


def test_another_process_reads_step_and_section_and_what_comes_later_is_larger(tmp_path: Path) -> None:
    file = tmp_path / "heartbeat"
    file.write_bytes(bytes(2 * NUM_WORDS * 8))
    heartbeat = Heartbeat(file, rank=1)
    heartbeat.enter(StepSection.FORWARD)  # of the warm-up: no step has begun
    seen = [_words(file, 1)[POSITION]]
    assert decode_position(seen[0]) == (0, StepSection.START)
    for step in (1, 2):
        heartbeat.begin(step)
        seen.append(_words(file, 1)[POSITION])
        for section in (
            StepSection.FORWARD,
            StepSection.BACKWARD,
            StepSection.FORWARD,
            StepSection.BACKWARD,
            StepSection.UPDATE,
        ):
            heartbeat.enter(section)
            seen.append(_words(file, 1)[POSITION])
            assert decode_position(seen[-1]) == (step, section)
    heartbeat.rest()
    seen.append(_words(file, 1)[POSITION])
    assert decode_position(seen[-1]) == (2, StepSection.START)
    assert seen == sorted(set(seen))
    assert _words(file, 1)[PID] > 0
    assert not any(_words(file, 0)), "the other rank's words are left alone"
