"""The files of a federation: its description, the kits of its nodes, what nodes keep on their disks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from blocks import blocks_of
from palmette.algorithms import PerMFL
from palmette.deploy.enrolling import enrol
from palmette.deploy.federation import Federation, read_federation
from palmette.deploy.keeping import Disk, packed, unpack
from palmette.deploy.kit import CERTIFICATE, KEY, NODE, STATE, Kit, Place
from palmette.deploy.kits import Kits, make_kits
from palmette.deploy.newcomers import Newcomer, Newcomers, read_newcomers
from palmette.deploy.outcome import History
from palmette.deploy.server import Server
from palmette.engines.machine import Forgotten, Machine
from palmette.engines.setup import setup_of
from palmette.engines.simulate import Simulation
from palmette.engines.snapshot import Remembered
from palmette.errors import BadInput, PalmetteError
from palmette.links import Link
from palmette.links.codecs import Codec
from palmette.links.post import Post
from palmette.links.wire import Envelope, decode, encode
from palmette.runs.files import Unwritable
from problems import regression, task_of

RUN: dict[str, Any] = {
    "algorithm": "permfl",
    "rounds": 2,
    "tree": {"oslo": ["a", "b"], "lima": ["c"]},
    "settings": {"team_steps": 2, "local_steps": 2, "alpha": 0.1},
    "data": {"name": "digits"},
}


def federation(**changed: Any) -> Federation:
    return Federation(**{"name": "trial", "addresses": "local", "run": RUN, **changed})


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return make_kits(federation(), tmp_path_factory.mktemp("kits") / "made")


# -- the description ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"deadlines": 3}, "unknown key 'deadlines'; did you mean 'deadline'"),
        ({"deadline": -1}, "deadline"),
        ({"engine": "carrier-pigeon"}, "engine"),
        ({"addresses": {"server": "x:1", "oslo": "x:2"}}, "leaves out 'lima'"),
        ({"addresses": {"server": "x:1", "oslo": "x:2", "lima": "x"}}, "addresses.lima = 'x' is no address"),
        ({"addresses": {"server": "x:1", "oslo": "x:2", "lime": "x:3"}}, "there is no node 'lime'"),
        ({"run": {**RUN, "loss": 0.1}}, "loss simulate"),
        ({"run": {**RUN, "metrics": ["f1"]}}, "run.metrics: a federation measures loss and accuracy only"),
        ({"run": {**RUN, "evaluate_on": 2}}, "run.evaluate_on: a federation measures every device"),
        ({"run": {**RUN, "links": {"devices": {"lost": 0.1}}}}, "faults of links"),
        ({"run": {**RUN, "clock": {"preset": "edge"}}}, "clock"),
        ({"run": {**RUN, "rounds": 0}}, "rounds"),
        ({"run": {**RUN, "algorithm": "permlf"}}, "permfl"),
        ({"run": {**RUN, "data": {"name": "digits", "unseen": 0.3}}}, "unseen"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_description_that_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    import tomli_w

    file = tmp_path / "federation.toml"
    file.write_text(tomli_w.dumps({"name": "trial", "addresses": "local", "run": RUN, **change}))
    with pytest.raises(BadInput) as error:
        make_kits(read_federation(file), tmp_path / "kits")
    assert told in str(error.value)
    assert not (tmp_path / "kits").exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no config file"):
        read_federation(tmp_path / "none.toml")


# -- kits --------------------------------------------------------------------------------------------------------------


def test_every_node_has_a_kit_with_its_own_key_and_nobody_elses(kits: Kits) -> None:
    assert sorted(path.name for path in kits.nodes.values()) == ["a", "b", "c", "lima", "oslo", "server"]
    keys = {path.name: (path / KEY).read_bytes() for path in kits.nodes.values()}
    assert len(set(keys.values())) == 6
    for path in kits.nodes.values():
        assert (path / KEY).stat().st_mode & 0o077 == 0
        others = [key for name, key in keys.items() if name != path.name]
        content = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
        assert not any(key in content for key in others)


def test_a_device_is_told_of_itself_and_those_above_it_alone(kits: Kits) -> None:
    told = (kits.nodes[0, 0] / NODE).read_text()
    assert '"a"' in told
    assert '"oslo"' in told
    assert not any(f'"{name}"' in told for name in ("b", "c", "lima"))
    assert json.loads((kits.nodes[1, 1] / NODE).read_text())["parent"]["name"] == "server"


def test_a_kit_makes_the_machine_that_the_simulation_has(kits: Kits) -> None:
    setup = Kit(kits.nodes[0, 1]).setup()
    whole = setup_of(kits.whole, 0, 1)
    assert setup.learner is not None
    assert whole.learner is not None
    assert torch.equal(setup.learner.population.x, whole.learner.population.x)
    assert torch.equal(setup.initial, whole.initial)
    assert [one.tolist() for one in setup.samples] == [one.tolist() for one in whole.samples]
    assert setup.learner.backend.name == kits.whole.learner.backend.name


def test_parents_wait_longer_than_all_their_children_may_take(kits: Kits) -> None:
    team, server = (Kit(kits.nodes[place]).node.deadline for place in ((1, 0), (2, 0)))
    assert team == 60
    assert server is not None
    assert server > 2 * team  # two exchanges with the devices in one with the server


def test_a_folder_that_has_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kits").mkdir()
    (tmp_path / "kits" / "precious").touch()
    with pytest.raises(BadInput, match="is there already"):
        make_kits(federation(), tmp_path / "kits")
    assert (tmp_path / "kits" / "precious").exists()


@pytest.mark.parametrize(
    ("name", "content"), [(NODE, b"{"), (NODE, b'{"format": 9}'), (NODE, b"[]"), (CERTIFICATE, None)]
)
def test_a_kit_that_is_damaged_is_refused(kits: Kits, tmp_path: Path, name: str, content: bytes | None) -> None:
    import shutil

    folder = tmp_path / "kit"
    shutil.copytree(kits.nodes[0, 0], folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(BadInput):
        _ = Kit(folder).identity


@pytest.mark.parametrize(("place", "told"), [((0, 0), "in its kit"), ((1, 0), "no device")])
def test_samples_that_a_node_has_no_use_for_are_refused(kits: Kits, place: tuple[int, int], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Kit(kits.nodes[place], Path("mine.csv")).setup()


# -- samples of one's own ----------------------------------------------------------------------------------------------

ROWS = "size,colour,good\n" + "".join(
    f"{i % 7},{'red' if i % 3 else 'blue'},{'yes' if i % 2 else 'no'}\n" for i in range(40)
)


def own(tmp_path: Path) -> Kits:
    example = tmp_path / "example.csv"
    device = [f"x{i % 4}" for i in range(41)]
    lines = ROWS.splitlines()
    example.write_text("\n".join([f"device,{lines[0]}", *(f"{device[i]},{line}" for i, line in enumerate(lines[1:]))]))
    run = {**RUN, "data": {"name": str(example), "device": "device", "label": "good"}}
    return make_kits(federation(run=run, data="own"), tmp_path / "kits")


def test_a_device_reads_its_own_table_as_the_example_was_read(tmp_path: Path) -> None:
    kits = own(tmp_path)
    mine = tmp_path / "mine.csv"
    mine.write_text(ROWS)
    setup = Kit(kits.nodes[0, 2], mine).setup()
    assert setup.learner is not None
    assert setup.learner.population.shape == kits.whole.population.shape
    assert setup.samples[0].tolist() == [30]
    assert not list(kits.nodes[0, 2].glob("data*"))


def test_a_device_does_not_take_another_ones_file(tmp_path: Path) -> None:
    kits = own(tmp_path)
    name = kits.whole.tree.name(0, 1)
    theirs, mine = tmp_path / "theirs.csv", tmp_path / "mine.csv"
    for path, device in ((theirs, "who"), (mine, name)):
        lines = ROWS.splitlines()
        path.write_text("\n".join([lines[0] + ",device", *(f"{line},{device}" for line in lines[1:])]))
    with pytest.raises(BadInput, match=f"its rows are of 'who' .column 'device'., and this device is '{name}'"):
        Kit(kits.nodes[0, 1], theirs).setup()
    assert Kit(kits.nodes[0, 1], mine).setup().samples[0].tolist() == [30]


def test_a_method_and_a_model_of_ones_own_must_be_the_same_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (mine,) = blocks_of("AGENTS.md", "python")[:1]
    Path("mine.py").write_text(mine.body)
    Path("net.py").write_text(
        "from torch import nn\n\ndef make(shape, outputs):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    run = {**RUN, "algorithm": "./mine.py", "settings": {}, "model": {"name": "./net.py:make"}}
    made = make_kits(federation(run=run), Path("kits"))
    assert [note for note in made.notes if "no code is sent" in note and str(tmp_path) in note] == made.notes[-2:]
    assert type(Kit(made.nodes[0, 0]).setup().algorithm).__name__ == "Mine"
    Path("net.py").write_text(Path("net.py").read_text() + "    # more\n\nother = 1\n")
    Path("mine.py").write_text(mine.body.replace("lam: float = 0.1", "lam: float = 0.2"))
    with pytest.raises(BadInput, match="is not what it was when the kits were made; every machine must have the same"):
        Kit(made.nodes[0, 0]).setup()
    Path("mine.py").unlink()
    with pytest.raises(BadInput, match=r"there is no file .*mine\.py.*; no code is sent, so put the file there"):
        Kit(made.nodes[1, 0]).setup()


def test_kits_whose_names_are_not_their_nodes_are_told(tmp_path: Path) -> None:
    run = {**RUN, "tree": {"oslo": ["Köln 1", "b"], "lima": ["c"]}}
    made = make_kits(federation(run=run), tmp_path / "kits")
    assert f"the kit of 'Köln 1' is {tmp_path / 'kits' / 'Köln_1-0-0'}" in made.notes
    assert len([note for note in made.notes if note.startswith("the kit of")]) == 1


def test_a_device_that_diverges_does_not_end_a_training_unless_that_is_said() -> None:
    assert federation().config().links["all"].on_bad_reply == "drop"
    said = {**RUN, "links": {"devices": {"on_bad_reply": "stop"}}}
    assert "all" not in federation(run=said).config().links


def test_what_keeps_a_node_running_names_samples_where_the_device_has_its_own(tmp_path: Path, kits: Kits) -> None:
    mine = own(tmp_path)
    for made, place, expected in ((kits, (0, 0), False), (mine, (1, 0), False), (mine, (0, 0), True)):
        unit = (made.nodes[place] / "palmette.service").read_text()
        compose = (made.nodes[place] / "compose.yaml").read_text()
        assert (
            (" --data /var/lib/palmette/samples.csv\n" in unit) == ("--data /data/samples.csv\n" in compose) == expected
        )
        assert f"palmette serve --kit /etc/palmette/{made.nodes[place].name}" in unit
        assert "command: palmette serve --kit /kit" in compose


def test_a_table_of_ones_own_is_read_with_the_same_care_as_any_other(tmp_path: Path) -> None:
    kits, mine = own(tmp_path), tmp_path / "mine.csv"
    mine.write_bytes(ROWS.replace(",", ";").replace("blue", "bläu").replace("bläu", "blue", 9).encode("cp1252"))
    kit = Kit(kits.nodes[0, 2], mine)
    setup = kit.setup()
    assert setup.samples[0].tolist() == [30]
    told = " ".join(kit.notes)
    assert "separated by semicolons" in told
    assert "5 cells hold a category that no training row has" in told
    assert "team" not in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "say where they are"),
        ("size,colour,good\n1,red,maybe\n2,blue,no\n", "maybe"),
        ("device,size,colour,good\np,1,red,yes\np,1,blue,no\nq,2,red,no\nq,2,blue,yes\n", "of 2 devices"),
        ("size,good\n1,yes\n2,no\n", "colour"),
        (
            "size;colour;good\n1,5;red;yes\nwet;blue;no\n3,0;red;no\n",
            r"row 2 \(line 3 of the file\), .*'wet' is not a number",
        ),
        ("size;colour;good\nwet;red;yes\nwet;blue;no\n", r"row 1 \(line 2 of the file\), .*'wet' is not a number"),
    ],
)
def test_samples_that_do_not_fit_the_federation_are_refused(tmp_path: Path, content: str | None, told: str) -> None:
    kits, path = own(tmp_path), None
    if content is not None:
        path = tmp_path / "mine.csv"
        path.write_text(content)
    with pytest.raises(BadInput, match=told):
        Kit(kits.nodes[0, 0], path).setup()


# -- what nodes keep ---------------------------------------------------------------------------------------------------


def test_the_disk_has_what_was_written_last_whatever_happens_to_the_other_file(tmp_path: Path) -> None:
    Disk(tmp_path).write(b"zero")
    disk = Disk(tmp_path)
    assert disk.read() == b"zero"
    disk.write(b"one")
    disk.write(b"two")
    assert Disk(tmp_path).read() == b"two"
    newest = next(path for path in tmp_path.iterdir() if b"two" in path.read_bytes())
    data = newest.read_bytes()
    for damaged in (data[:-1], data[:3], b"", bytes([data[0] ^ 1]) + data[1:]):
        newest.write_bytes(damaged)
        assert Disk(tmp_path).read() == b"one"


def test_a_disk_that_is_full_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path)
    disk.write(b"one")
    disk.write(b"two")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("palmette.deploy.keeping._synced", full)
        with pytest.raises(OSError, match="No space"):
            disk.write(b"three")
    assert Disk(tmp_path).read() in (b"two", b"three")
    disk.write(b"four")
    assert Disk(tmp_path).read() == b"four"


def _machine(links: dict[int, Link]) -> Machine:
    people = regression("1x1")
    return Machine(setup_of(Simulation(PerMFL(), people, task_of(people), rounds=3, links=links), 0, 0))


def test_a_machine_goes_on_from_its_disk_as_if_it_had_never_stopped() -> None:
    links = {0: Link(down=Codec.parse("delta+int8"), up=Codec.parse("int8"))}
    whole, crashing = _machine(links), _machine(links)
    base, rows = -1, torch.zeros(1, 3)
    sender = Post(links[0].down, links[0].up, Remembered(), whole.setup.layout)
    for number in range(4):
        sent = sender.send("down", rows + number, torch.zeros(1, dtype=torch.int64))
        message = encode(Envelope(rounds=3, path=(number,), base=base, body=sent.on_the_wire()))
        expected, found = whole.answer(message), crashing.answer(message)
        assert expected == found
        kept = packed(crashing, {"starts": number})
        crashing = _machine(links)
        assert unpack(crashing, kept) == {"starts": number}
        assert crashing.answer(message) == expected  # what was answered is not worked on again
        assert expected is not None
        base = decode(expected).version
    assert all(torch.equal(rows, crashing.state[name]) for name, rows in whole.state.items())


def test_a_state_that_is_gone_is_told_and_not_made_up() -> None:
    machine = _machine({})
    with pytest.raises(Forgotten, match="has no state number 5"):
        machine.answer(encode(Envelope(rounds=3, base=5, body=torch.zeros(1, 3))))


def test_a_reply_that_cannot_be_kept_is_never_sent_and_leaves_no_trace() -> None:
    machine = _machine({})

    def full() -> None:
        raise OSError(28, "No space left on device")

    message = encode(Envelope(rounds=3, body=torch.zeros(1, 3)))
    machine.on_kept = full
    with pytest.raises(OSError, match="No space"):
        machine.answer(message)
    assert not machine.took_part
    machine.on_kept = lambda: None
    assert machine.answer(message) == _machine({}).answer(message)


def test_a_parent_that_was_started_again_may_ask_the_same_once_more() -> None:
    machine = _machine({})
    first = machine.answer(encode(Envelope(rounds=3, path=(4,), body=torch.zeros(1, 3))))
    again = encode(Envelope(rounds=3, path=(0,), starts=(1,), body=torch.zeros(1, 3)))
    assert first is not None
    assert machine.answer(encode(Envelope(rounds=3, path=(0,), body=torch.zeros(1, 3)))) is None  # outdated
    assert machine.answer(again) is not None


# -- devices that are added --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parent", "told"),
    [
        ("a", None, "there is a device 'a' already; names must differ. To give it a new certificate, revoke it first"),
        ("d", None, "say under which team it comes: --parent oslo or lima"),
        ("d", "pune", "no device reports to 'pune'; --parent is one of oslo, lima"),
        (" ", "oslo", "empty name"),
        ("d", "oslo", "nobody listens"),
    ],
)
def test_a_device_that_cannot_be_added_is_refused_and_leaves_nothing(
    kits: Kits, name: str, parent: str | None, told: str
) -> None:
    before = sorted(kits.folder.iterdir())
    with pytest.raises(BadInput) as error:
        enrol(kits.folder, name, parent)
    assert told in str(error.value)
    assert sorted(kits.folder.iterdir()) == before


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({**RUN, "tree": "2x2"}, "the devices of this federation have numbers and no names"),
        (
            {**RUN, "settings": {"team_steps": 2, "alpha": {"a": 0.1, "b": 0.1, "c": 0.2}}},
            "this training has 'alpha' for each device by its name, and none for 'd'",
        ),
    ],
)
def test_devices_of_some_federations_cannot_be_added(tmp_path: Path, run: dict[str, Any], told: str) -> None:
    made = make_kits(federation(run=run), tmp_path / "kits")
    with pytest.raises(BadInput, match=told):
        enrol(made.folder, "d", "oslo")


def test_an_added_device_is_counted_by_all_on_the_way_and_by_nobody_before(tmp_path: Path) -> None:
    """The words of nodes to each other, without a network: what each keeps is what the others expect."""
    one = Newcomer(name="d", id="d" * 32, parent="oslo", path=("t" * 32,))
    server, team = (Trial(tmp_path / name) for name in ("server", "team"))
    server.node.children = [Place(name="oslo", id="t" * 32)]
    server.say = lambda id_, told: team.newcomers.hear(told)
    team.say = lambda id_, told: {"samples": 7}
    server.newcomers.prepare(one, 0, 3)
    assert [(kept.name, kept.samples, kept.round) for kept in read_newcomers(tmp_path / "server").joined] == [
        ("d", 7, 3)
    ]
    assert [(kept.path, kept.samples) for kept in read_newcomers(tmp_path / "team").joined] == [((), 7)]
    assert team.newcomers.counted == []
    # The server never came to count it, and counts another one instead: the team forgets the first.
    server.newcomers.prepare(one.model_copy(update={"name": "e", "id": "e" * 32}), 0, 4)
    assert [kept.name for kept in read_newcomers(tmp_path / "team").joined] == ["e"]
    team.newcomers.count(1)
    assert team.grown == [("e", "oslo", None, 7)]
    assert [child.name for child in team.node.children] == ["e"]
    with pytest.raises(PalmetteError, match="counts more devices than its parent"):
        server.newcomers.prepare(one, 0, 5)
    with pytest.raises(PalmetteError, match="is told of 2 devices that were added below it and knows of 1"):
        team.newcomers.count(2)
    server.say = lambda id_, told: None
    with pytest.raises(PalmetteError, match="'oslo' is not connected"):
        server.newcomers.prepare(one, 1, 5)
    (tmp_path / "team" / "newcomers.json").write_text("{")
    with pytest.raises(BadInput, match="which devices were added"):
        read_newcomers(tmp_path / "team")


class Trial:
    """A node as far as added devices concern it, whose children say what a test wants."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.grown: list[tuple[Any, ...]] = []
        self.say: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda id_, told: None
        machine = SimpleNamespace(grown=0, grow=self._grow)
        self.node: Any = SimpleNamespace(
            kit=SimpleNamespace(folder=folder),
            node=SimpleNamespace(name=folder.name, parent=None),
            machine=machine,
            children=[],
            samples={},
            journal=SimpleNamespace(line=lambda text: None),
            below=SimpleNamespace(call=self._call),
        )
        self.node.add = lambda place, samples: self.node.children.append(place)
        self.newcomers = Newcomers(self.node)

    def _grow(self, *told: Any) -> None:
        self.grown.append(told)
        self.node.machine.grown += 1

    def _call(self, id_: str, data: bytes, seconds: float) -> bytes | None:
        answer = self.say(id_, json.loads(data))
        return None if answer is None else json.dumps(answer).encode()


# -- what a server keeps -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Unwritable("cannot write x: no room")])
def test_a_server_whose_disk_is_full_waits_for_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.deploy.server._AGAIN", 0.01)
    server, told, left = Server.__new__(Server), list[str](), [error, error]
    server.node = SimpleNamespace(name="server")  # type: ignore[assignment]
    server.journal = SimpleNamespace(event=lambda kind, who, text: told.append(text))  # type: ignore[assignment]

    def write() -> None:
        if left:
            raise left.pop()

    server._written("round 3", write)
    assert not left
    assert [text.startswith("waits for its disk: round 3 cannot be kept: ") for text in told] == [True, True]


def test_what_was_told_in_the_end_is_there_for_a_server_that_crashes_then(kits: Kits, tmp_path: Path) -> None:
    kit = Kit(shutil.copytree(kits.nodes[2, 0], tmp_path / "server"))
    (kit.folder / STATE).mkdir()
    assert History(kit).told_in_the_end() is None
    ended = {"record": torch.zeros((0, 5), dtype=torch.int64), "samples": torch.tensor([[3, 4], [1, 1]])}
    History(kit).keep_the_end(ended)
    found = History(kit).told_in_the_end()
    assert found is not None
    assert found.keys() == ended.keys()
    assert all(torch.equal(found[name], ended[name]) for name in ended)
