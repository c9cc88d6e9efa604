"""What nodes say to each other before any rank runs: who may come in, what is sent, what is refused."""

import json
import socket
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.params import Params
from tasks.process.failure import ConfigurationError, DataError, DistributedError, ResourceError
from tasks.ranks.cell_ranks import find_nodes
from tasks.ranks.launchers import Nodes
from tasks.ranks.launchers.nodes.gathering import Gathering, make_join_command
from tasks.ranks.launchers.nodes.line import KEY, Line, LostError, get_head_key, knock, parse_address
from tasks.ranks.launchers.nodes.lobby import Lobby, open_lobby
from tasks.ranks.launchers.nodes.other import OtherNode, _write
from tasks.ranks.launchers.nodes.parcel import pack, send_files, unpack
from tasks.ranks.launchers.nodes.route import find_free_port, look_up_route
from tests.tiny import make_config, make_slice


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{find_free_port('127.0.0.1')}"


@pytest.fixture
def lobby(address: str) -> Lobby:
    return open_lobby(address, "the key")


def _knocked(address: str, node: str, node_rank: int | None = None) -> Line:
    line = knock(parse_address(address), "the key")
    assert line is not None
    line.say(node=node, host=node, node_rank=node_rank)
    return line


def _nodes(address: str, *, wait_seconds: float = 10.0, start_command: str | None = None) -> Nodes:
    return Nodes(
        num_nodes=3, rendezvous=address, start_command=start_command, wait_seconds=wait_seconds, silence_seconds=1.0
    )


def test_nodes_that_wait_get_the_numbers_that_they_ask_for(lobby: Lobby, address: str) -> None:
    lines = [_knocked(address, "a"), _knocked(address, "b", 1)]
    gathered = Gathering(_nodes(address), cell="x").lines(lobby, is_over=lambda: False)
    assert [said["node"] for _, said in gathered] == ["b", "a"]
    gathered[0][0].say(hello=1)
    assert lines[1].hear(5) == {"hello": 1}


def test_a_node_that_has_gone_or_is_there_twice_is_not_taken(lobby: Lobby, address: str) -> None:
    _knocked(address, "gone").close()
    twice = [_knocked(address, "a"), _knocked(address, "a")]
    with pytest.raises(
        ResourceError, match=r"1 of 3 nodes did not come to .*python -m tasks.ranks.launchers.nodes.join"
    ):
        Gathering(_nodes(address, wait_seconds=1.0), cell="x").lines(lobby, is_over=lambda: False)
    assert len(twice) == 2


def test_who_has_another_key_does_not_get_in(lobby: Lobby, address: str) -> None:
    with pytest.raises(AuthenticationError):
        knock(parse_address(address), "another")
    with socket.create_connection(parse_address(address)) as plug:
        plug.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    assert lobby.take(but_not=[]) is None


def test_a_command_that_cannot_start_a_node_is_named_with_its_last_words(
    lobby: Lobby, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = _nodes(address, wait_seconds=20.0, start_command="sh -c 'echo no route to {node_rank}; exit 3' {command}")
    with pytest.raises(ConfigurationError, match=r"exit code 3: no route to 1; its log: .*start-1.log"):
        Gathering(nodes, cell="x").lines(lobby, is_over=lambda: False)


def test_the_command_for_other_nodes_has_the_key_unless_it_is_in_the_environment(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(KEY, raising=False)
    made = get_head_key()
    assert get_head_key() == made
    assert (tmp_path / ".work" / "nodes.key").stat().st_mode & 0o77 == 0
    assert make_join_command(_nodes(address)) == f"python -m tasks.ranks.launchers.nodes.join {address} --key {made}"
    monkeypatch.setenv(KEY, "a secret")
    assert "a secret" not in make_join_command(_nodes(address), node_rank=1)
    assert make_join_command(_nodes(address), node_rank=1).endswith(f"{address} --node-rank 1 --patience 30")


@pytest.fixture
def lines(lobby: Lobby, address: str) -> Iterator[tuple[Line, Line]]:
    """Both ends of a line: the head's and the node's."""
    there = _knocked(address, "a")
    taken = None
    while taken is None:
        taken = lobby.take(but_not=[])
    yield taken[0], there
    taken[0].close()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A launch whose slice stands in data/ and whose model was made for it alone."""
    head = tmp_path / "head"
    (head / "made").mkdir(parents=True)
    (head / "made" / "weights").write_bytes(b"1234")
    monkeypatch.chdir(head)
    return make_config(head / "work", head / "made", [make_slice(head / "data" / "slices" / "0-40")])


def _unpacked(lines: tuple[Line, Line], config: dict[str, Any], node: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    parcel = json.loads(json.dumps(pack(config)))
    sending = threading.Thread(target=send_files, args=(parcel, lines[0]))
    sending.start()
    node.mkdir(exist_ok=True)
    monkeypatch.chdir(node)
    try:
        return unpack(parcel, lines[1], work=node / "work")
    finally:
        sending.join()


def test_a_node_with_the_same_data_gets_the_rest_and_its_own_paths(
    lines: tuple[Line, Line], config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = tmp_path / "node"
    make_slice(node / "data" / "slices" / "0-40")
    own = _unpacked(lines, config, node, monkeypatch)
    assert own["segments"][0]["slice_dir"] == str(node / "data" / "slices" / "0-40")
    assert own["work_dir"] == str(node / "work")
    assert (Path(own["model_dir"]) / "weights").read_bytes() == b"1234"
    assert own | {"segments": [], "work_dir": "", "model_dir": ""} == config | {
        "segments": [], "work_dir": "", "model_dir": ""
    }  # fmt: skip


@pytest.mark.parametrize(
    ("has_data", "says"),
    [
        (False, r"data/slices/0-40/manifest.json is missing in .*node; copy data/base_model and data/slices"),
        (True, r"data/slices/0-40/manifest.json is not the head's: sha256 \w{12}, there \w{12}; copy "),
    ],
)
def test_data_that_is_missing_or_not_the_heads_is_refused_by_name(
    has_data: bool, says: str, lines: tuple[Line, Line], config: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if has_data:
        make_slice(tmp_path / "node" / "data" / "slices" / "0-40", seed=1)
    with pytest.raises(DataError, match=says):
        _unpacked(lines, config, tmp_path / "node", monkeypatch)


def test_an_end_that_hangs_up_is_noticed(lines: tuple[Line, Line]) -> None:
    lines[1].close()
    with pytest.raises(LostError):
        lines[0].hear(5)


def test_a_node_speaks_of_its_own_ranks_only_and_its_silence_counts_from_when_it_is_taken(
    lines: tuple[Line, Line], tmp_path: Path
) -> None:
    lines[0].heard_at = 0.0  # it knocked long ago
    node = OtherNode(1, lines[0], host="b", cell="2nodes", ranks_per_node=2, words=memoryview(bytearray(800)).cast("q"))
    node.listen(tmp_path, 60.0)
    for rank in ("0", "4", "-1", "../x"):
        lines[1].say(failures=[{"rank": rank, "at": 0.0}])
        with pytest.raises(DistributedError, match="none of its own"):
            node.listen(tmp_path, 60.0)
        lines[1].say(at={rank: [1]})
        with pytest.raises(DistributedError, match="none of its own"):
            node.listen(tmp_path, 60.0)
    lines[1].say(failures=[{"rank": 3, "at": 0.0}])
    node.listen(tmp_path, 60.0)
    assert [file.name for file in tmp_path.rglob("*.json")] == ["rank-3.json"]


def test_no_node_writes_outside_the_folder_of_its_logs(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for name in ("../outside", str(tmp_path / "outside"), "a/../../outside"):
        _write(folder, name, b"")
    _write(folder, "a/inside.log", b"")
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["inside.log"]


def test_the_way_to_a_host_of_this_machine_is_its_loopback() -> None:
    address, interface = look_up_route("127.0.0.1", 29400)
    assert address == "127.0.0.1"
    assert interface in [name for _, name in socket.if_nameindex()]
    with pytest.raises(ConfigurationError):
        look_up_route("no-such-host.invalid", 29400)


def test_an_address_that_is_not_the_heads_own_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"192.0.2.1:29400: .*allowed: an address of this machine"):
        Lobby("192.0.2.1:29400", "k")


def _params(project: Path, cell: dict[str, Any], **nodes: Any) -> Params:
    raw = YAML(typ="safe", pure=True).load(project / "params.yaml")
    return Params.model_validate(raw | {"cells": raw["cells"] | {"many": cell}, "nodes": nodes})


def test_nodes_come_from_params_or_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"strategy": "ddp", "world_size": 4, "num_nodes": 2}
    assert find_nodes("2proc", _params(project, cell)) is None
    with pytest.raises(ConfigurationError, match=r"cells.many.num_nodes=2 and no nodes.rendezvous"):
        find_nodes("many", _params(project, cell))
    monkeypatch.setenv("DDP_COMPARE_RENDEZVOUS", "host:1")
    found = find_nodes("many", _params(project, cell))
    assert found is not None
    assert (found.num_nodes, found.rendezvous, found.silence_seconds) == (2, "host:1", 30.0)
    told = find_nodes("many", _params(project, cell, rendezvous="10.0.0.1:29400"))
    assert told is not None
    assert told.rendezvous == "10.0.0.1:29400"


@pytest.mark.parametrize(
    ("cell", "nodes", "says"),
    [
        ({"world_size": 4, "num_nodes": 3}, {}, "num_nodes: got 3 with world_size 4"),
        ({"world_size": 4, "num_nodes": 2}, {"rendezvous": "nowhere"}, "rendezvous"),
        ({"world_size": 4, "num_nodes": 2}, {"start_command": "ssh host"}, "must hold {command}"),
    ],
)
def test_nodes_that_cannot_be_are_refused(
    cell: dict[str, Any], nodes: dict[str, Any], says: str, project: Path
) -> None:
    with pytest.raises(ValueError, match="(?s)" + says.replace("{", r"\{")):
        _params(project, {"strategy": "ddp", **cell}, **nodes)
