"""A small federation of real processes under mutual TLS: killed nodes, a status, a revoked device, the simulation's bits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch

from palmette.cli.failures import BAD_INPUT
from palmette.deploy.asking import ask, revoke
from palmette.deploy.enrolling import enrol
from palmette.deploy.federation import Federation
from palmette.deploy.kits import Kits, make_kits
from palmette.deploy.launching import Processes, free_ports
from palmette.deploy.parity import parity
from palmette.engines.setup import of_device
from palmette.errors import BadInput
from palmette.runs import load
from palmette.runs.config import RunConfig
from palmette.tree import Tree
from test_cli import palmette

LONGEST = 90.0
SERVER, TEAM, ANNA, BERT, CARL, DORA = (2, 0), (1, 0), (0, 0), (0, 1), (0, 2), (0, 3)


def make(folder: Path, rounds: int) -> Kits:
    run = {
        "algorithm": "permfl",
        "rounds": rounds,
        "tree": {"oslo": ["anna", "bert", "carl"]},
        "settings": {"team_steps": 4, "local_steps": 100, "alpha": 0.02},
        "data": {"name": "digits"},
    }
    one, two = free_ports(2)
    addresses = {"server": f"127.0.0.1:{one}", "oslo": f"127.0.0.1:{two}"}
    return make_kits(Federation(name="test", run=run, addresses=addresses, deadline=10, patience=0.5), folder)


def until(true: Callable[[], bool], processes: Processes) -> None:
    began = time.monotonic()
    while not true():
        processes.check()
        assert time.monotonic() - began < LONGEST, processes.output(SERVER)
        time.sleep(0.05)


@pytest.mark.xdist_group("processes")
def test_a_federation_goes_on_with_the_killed_the_revoked_and_the_new_and_has_the_bits_of_the_simulation(
    tmp_path: Path,
) -> None:
    kits = make(tmp_path / "kits", 80)
    other = RunConfig(algorithm="permfl", tree={"oslo": ["dora", "emil"]}, data={"name": "digits"}, seed=9)
    with Processes(kits.nodes) as processes:
        until(lambda: "round 2 of" in processes.output(SERVER), processes)
        processes.kill(ANNA)
        processes.start(ANNA)
        told = ask(kits.folder, {"do": "status", "seconds": 5.0}, 10.0)
        assert told["federation"] == "test"
        assert [child["name"] for child in told["children"]] == ["oslo"]
        assert {child["name"] for child in told["children"][0]["children"]} == {"anna", "bert", "carl"}
        found = revoke(kits.folder, "carl")
        assert found["reached"] == 2
        until(lambda: "is revoked" in processes.output(TEAM), processes)
        dora = enrol(kits.folder, "dora").kit
        of_device(other.population(), 0, Tree.parse({"oslo": ["dora"]})).save(dora / "data")
        processes.kits[DORA], processes.data[DORA] = dora, dora / "data"
        processes.start(DORA)
        until(lambda: "dora is counted" in processes.output(SERVER), processes)
        until(lambda: "the training is over" in processes.output(SERVER), processes)
        until(lambda: {SERVER, TEAM, BERT, DORA} <= set(processes.ended()), processes)
        assert "refused" in processes.output(CARL)
    compared = parity(kits, [dora])
    assert compared.same, compared.wrong
    assert compared.absences > 0
    run = load(kits.nodes[SERVER] / "run")
    assert run.finished
    assert run.rounds_done == 80
    assert {row["node"] for row in run.absences.to_pylist()} >= {"carl"}
    assert run.config.tree == {"oslo": ["anna", "bert", "carl", "dora"]}
    (added,) = json.loads((run.folder / "added.json").read_text())
    assert (added["node"], added["parent"]) == ("dora", "oslo")
    assert run.last("PM", node="dora") > 0.5
    listed = {row["node"]: row["train"] for row in run.population.to_pylist()}
    assert listed["dora"] == int(other.population().train[0])
    assert listed["carl"] == 0  # it was not there in the end
    with pytest.raises(BadInput, match="devices were added to that training while it ran"):
        RunConfig(algorithm="permfl", tree=run.config.tree, replay=str(run.folder)).make_links(
            Tree.parse(run.config.tree)
        )
    assert run.links[-1]["bytes_up"] == compared.bytes_up
    file = kits.nodes[BERT] / "models" / "personal.safetensors"
    model = safetensors.torch.load_file(file)
    with safetensors.safe_open(file, "pt") as told:
        about = json.loads(told.metadata()["palmette"])
    assert (about["node"], about["kind"], about["algorithm"]) == ("bert", "PM", "permfl")
    assert sum(part.numel() for part in model.values()) == 650
    with pytest.raises(BadInput, match=r"the PM are not in .*, where each node keeps its own model"):
        run.module("PM", "bert")
    with pytest.raises(BadInput, match="nobody listens"):
        ask(kits.folder, {"do": "status"}, 3.0)
    began = time.monotonic()
    done = palmette("deploy", "status", "--kits", str(kits.folder), "--seconds", "1")
    assert (done.exit_code, "nobody listens" in done.stderr) == (BAD_INPUT, True)
    assert time.monotonic() - began >= 1  # it waits for a server that is just being started


def test_commands_of_a_federation_fail_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('name = "x"\n')
    for words, told in (
        (["deploy", "init", str(tmp_path / "none.toml")], "there is no config file"),
        (["deploy", "init", str(tmp_path / "bad.toml"), "--out", str(tmp_path / "kits")], "run"),
        (["serve", "--kit", str(tmp_path)], "is no kit of a node"),
        (["deploy", "status", "--kits", str(tmp_path)], "is not a folder that deploy init made"),
        (["deploy", "enrol", "anna", "--kits", str(tmp_path)], "is not a folder that deploy init made"),
        (["deploy", "revoke", "anna", "--kits", str(tmp_path)], "no certificate authority"),
    ):
        result = palmette(*words)
        assert result.exit_code == BAD_INPUT, words
        assert told in result.stderr, words
        assert "Traceback" not in result.stderr


def test_kits_are_made_by_the_command_and_told_as_json(tmp_path: Path) -> None:
    import tomli_w

    run = {"algorithm": "fedavg", "rounds": 1, "tree": {"oslo": ["anna"]}, "data": {"name": "digits"}}
    file = tmp_path / "federation.toml"
    file.write_text(tomli_w.dumps({"name": "x", "addresses": "local", "run": run}))
    result = palmette("deploy", "init", str(file), "--out", str(tmp_path / "kits"), "--json")
    told = json.loads(result.stdout.splitlines()[-1])
    assert set(told["kits"]) == {"server", "anna"}
    assert any("fedavg knows no teams: all devices dial the server" in note for note in told["notes"])
