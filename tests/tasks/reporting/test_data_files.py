import csv

import pytest

from tasks.reporting import data_files


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_losses_csv_has_one_line_per_cell_and_step(tmp_path, read):
    data_files.write_losses(tmp_path / "losses.csv", read())
    rows = [(row["cell"], row["step"], row["loss"]) for row in rows_of(tmp_path / "losses.csv")]
    assert rows[4:] == [("2proc", "1", "4.0"), ("2proc", "2", "3.9"), ("2proc", "3", "3.8"), ("2proc", "4", "3.7")]


def test_epochs_csv_has_a_line_per_cell_and_epoch_and_no_figure_that_compares(tmp_path, measured_results):
    data_files.write_epochs(tmp_path / "epochs.csv", measured_results)
    one, two = rows_of(tmp_path / "epochs.csv")
    assert (one["cell"], one["epoch"], one["train_seconds"]) == ("1proc", "1", "10.0")
    assert (two["cell"], two["world_size"], two["num_tokens"], "speedup" in two) == ("2proc", "2", "63", False)
    assert float(two["loss"]) == pytest.approx((3.95 * 31 + 3.75 * 32) / 63)


def test_a_file_is_replaced_not_written_into(tmp_path):
    """DVC's cache may hold the same file under another name."""
    path, cached = tmp_path / "index.html", tmp_path / "cached"
    path.write_text("old")
    cached.hardlink_to(path)
    cached.chmod(0o444)
    data_files.write_text(path, "new")
    assert (path.read_text(), cached.read_text()) == ("new", "old")
