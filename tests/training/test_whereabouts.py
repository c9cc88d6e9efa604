"""What a rank says of where it is."""

from pathlib import Path

from training.whereabouts import NUM_WORDS, PID, POSITION, Section, Whereabouts, described


def _words(file: Path, rank: int) -> list[int]:
    words = memoryview(file.read_bytes()).cast("q").tolist()
    return words[rank * NUM_WORDS : (rank + 1) * NUM_WORDS]


def test_another_process_reads_step_and_section_and_what_comes_later_is_larger(tmp_path: Path) -> None:
    file = tmp_path / "whereabouts"
    file.write_bytes(bytes(2 * NUM_WORDS * 8))
    whereabouts = Whereabouts(file, rank=1)
    whereabouts.enter(Section.FORWARD)  # of the warm-up: no step has begun
    seen = [_words(file, 1)[POSITION]]
    assert described(seen[0]) == (0, Section.START)
    for step in (1, 2):
        whereabouts.begin(step)
        seen.append(_words(file, 1)[POSITION])
        for section in (Section.FORWARD, Section.BACKWARD, Section.FORWARD, Section.BACKWARD, Section.UPDATE):
            whereabouts.enter(section)
            seen.append(_words(file, 1)[POSITION])
            assert described(seen[-1]) == (step, section)
    whereabouts.rest()
    seen.append(_words(file, 1)[POSITION])
    assert described(seen[-1]) == (2, Section.START)
    assert seen == sorted(set(seen))
    assert _words(file, 1)[PID] > 0
    assert not any(_words(file, 0)), "the other rank's words are left alone"


def test_whoever_listens_hears_of_sections_within_steps_only() -> None:
    heard: list[Section] = []
    whereabouts = Whereabouts()
    whereabouts.on_enter = heard.append
    whereabouts.enter(Section.FORWARD)
    whereabouts.begin(1)
    whereabouts.enter(Section.BACKWARD)
    whereabouts.rest()
    whereabouts.enter(Section.UPDATE)
    assert heard == [Section.BACKWARD]
