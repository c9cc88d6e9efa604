import json

import jsonschema
import pytest

from tasks.process.failure import DataError
from tasks.reporting.results import SCHEMA_FILE, make_json_schema, read_results, write_results


def test_the_published_schema_is_that_of_the_model():
    assert json.loads(SCHEMA_FILE.read_text()) == make_json_schema(), "python -m tasks.reporting.results writes it anew"


@pytest.mark.parametrize("name", ["clean_results", "withheld_measured_results"])
def test_results_json_is_valid_by_the_published_schema_and_read_back_as_written(tmp_path, request, name):
    path, results = tmp_path / "results.json", request.getfixturevalue(name)
    write_results(path, results)
    assert read_results(path) == results
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    content = json.loads(path.read_text())
    validator.validate(content)
    assert not validator.is_valid(content | {"another": 1})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "Invalid JSON|not JSON"),
        ("[]", "top level"),
        ('{"schema_version": 4}', "schema_version 4, allowed: 5; read it with the version that wrote it, or run"),
    ],
)
def test_a_file_that_is_no_results_json_is_refused_in_one_line(tmp_path, content, says):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=says) as refused:
        read_results(path)
    assert "\n" not in str(refused.value)
