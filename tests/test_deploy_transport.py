"""Links between a parent and its children: what arrives, who is refused and told, and that nobody else is disturbed."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest

if not (find_spec("grpc") and find_spec("cryptography")):  # to import gRPC before Palmette would let it write to stderr
    pytest.skip("needs the extra 'deploy'", allow_module_level=True)

from palmette.deploy import doorman, frames
from palmette.deploy.above import Above
from palmette.deploy.below import Below
from palmette.deploy.certificates import Authority, identity, serial_of
from palmette.deploy.frames import HEADER, Kind
from palmette.deploy.operating import operate
from palmette.deploy.tls import OWN, TALK, Identity, grpc
from palmette.errors import BadInput

LIMIT = 8_000_000
PARENT, OPERATOR = identity("f", 1, "team"), identity("f", -1, "operator")
ANNE, BEN, STRANGER = (identity("f", 0, name) for name in ("Anne", "Ben", "stranger"))


def until(true: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 8
    while not true():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


class Told(list[tuple[str, str, str]]):
    """Events of one end."""

    def __call__(self, *event: str) -> None:
        self.append(event)  # type: ignore[arg-type]

    def of(self, kind: str) -> list[str]:
        """Details of the events of one kind."""
        return [detail for known, _, detail in self if known == kind]


class Town:
    """Makes ends, and closes them when a test is over."""

    def __init__(self, authority: Authority, foreign: Authority, stack: ExitStack) -> None:
        self.authority, self.foreign, self.stack = authority, foreign, stack
        self.told: dict[object, Told] = {}

    def identity(self, who: str, *, authority: Authority | None = None, serves: bool = False) -> Identity:
        issued = (authority or self.authority).issue(who, serves=serves)
        return Identity(issued.certificate, issued.key, (authority or self.authority).certificate)

    def below(self, *children: str, port: int = 0, shows: Identity | None = None, **settings: Any) -> tuple[Below, int]:
        told, shows = Told(), shows or self.identity(PARENT, serves=True)
        names = {child: child for child in children or (ANNE, BEN)}
        settings = {"limit": LIMIT, "on_call": lambda *_: None, **settings}
        below = Below(f"127.0.0.1:{port}", shows, names, on_event=told, **settings)
        self.told[below] = told
        self.stack.callback(below.close)
        return below, below.start()

    def above(self, port: int, shows: str | Identity, *, parent: str = PARENT, **settings: Any) -> Above:
        told = Told()
        own = self.identity(shows) if isinstance(shows, str) else shows
        settings = {"limit": LIMIT, "on_call": lambda data: data, **settings}
        above = Above(f"127.0.0.1:{port}", own, parent, on_event=told, **settings)
        self.told[above] = told
        self.stack.callback(above.close)
        above.start()
        return above

    def pair(self) -> tuple[Below, Above]:
        """A parent with one child, connected."""
        below, port = self.below()
        above = self.above(port, ANNE)
        until(lambda: above.connected and ANNE in below.connected())
        return below, above


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("ca")
    return Authority.create(folder / "own", "f"), Authority.create(folder / "foreign", "f")


@pytest.fixture
def town(authorities: tuple[Authority, Authority]) -> Iterator[Town]:
    with ExitStack() as stack:
        yield Town(*authorities, stack)


def works(below: Below, above: Above, child: str = ANNE) -> bool:
    """Whether a message crosses both ways."""
    data = os.urandom(100)
    assert below.send(child, data)
    assert above.mail.get(timeout=5)[1] == data
    assert above.send(data[::-1])
    while (mail := below.mail.get(timeout=5))[1] is None:  # a connection that was lost before
        pass
    return mail == (child, data[::-1])


# -- what arrives ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, frames.PIECE - 1, frames.PIECE, frames.PIECE + 1, LIMIT])
def test_messages_of_any_size_arrive_whole_both_ways(town: Town, size: int) -> None:
    below, above = town.pair()
    data = os.urandom(size)
    assert below.send(ANNE, data)
    assert above.mail.get(timeout=5)[1] == data
    assert above.send(data)
    assert below.mail.get(timeout=5) == (ANNE, data)


def test_the_mail_of_both_ends_ends_when_they_are_closed(town: Town) -> None:
    below, above = town.pair()
    above.close()
    assert above.mail.get(timeout=5) is None
    assert below.mail.get(timeout=5) == (ANNE, None)
    until(lambda: not below.connected())
    assert not below.send(ANNE, b"x")
    assert not above.send(b"x")
    below.close()
    assert below.mail.get(timeout=5) == ("", None)


@pytest.mark.parametrize("size", [10, 6_000_000])
def test_what_a_child_says_before_it_leaves_arrives(town: Town, size: int) -> None:
    below, port = town.below()
    for _ in range(5):
        above = town.above(port, ANNE)
        until(lambda above=above: above.connected and ANNE in below.connected())
        assert above.send(b"last word" + bytes(size))
        began = time.monotonic()
        above.close()
        assert time.monotonic() - began < 4
        assert below.mail.get(timeout=8)[1] == b"last word" + bytes(size)
        assert below.mail.get(timeout=8) == (ANNE, None)


def test_a_child_that_leaves_does_not_wait_for_ever_for_a_parent_that_hangs(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("palmette.deploy.above._LAST_WORD", 0.3)
    below, port = town.below()
    above = town.above(port, ANNE)
    until(lambda: below.connected())
    while above.send(bytes(LIMIT)):  # nobody reads
        time.sleep(0.01)
    began = time.monotonic()
    above.close()
    assert time.monotonic() - began < 4


def test_what_is_too_large_is_not_sent(town: Town) -> None:
    below, above = town.pair()
    with pytest.raises(BadInput, match="larger than the limit"):
        below.send(ANNE, bytes(LIMIT + 1))
    with pytest.raises(BadInput, match="larger than the limit"):
        above.send(bytes(LIMIT + 1))
    assert works(below, above)


def test_a_call_is_answered_while_the_owner_is_busy_and_a_large_message_is_on_its_way(town: Town) -> None:
    below, port = town.below()
    above = town.above(port, ANNE, on_call=lambda data: b"round 3, " + data)
    until(lambda: ANNE in below.connected())
    data = os.urandom(LIMIT)
    assert below.send(ANNE, data)
    assert below.call(ANNE, b"sir", 5) == b"round 3, sir"
    assert above.mail.get(timeout=5)[1] == data


def test_a_call_without_an_answer_ends_in_time(town: Town) -> None:
    go = threading.Event()
    below, port = town.below()
    above = town.above(port, ANNE, on_call=lambda data: (go.wait(5) and data) or data)
    until(lambda: ANNE in below.connected())
    began = time.monotonic()
    assert below.call(ANNE, b"?", 0.1) is None
    assert below.call(BEN, b"?", 5) is None
    assert time.monotonic() - began < 1
    go.set()
    assert below.call(ANNE, b"again", 5) == b"again"
    assert works(below, above)


def test_a_call_ends_when_the_connection_does(town: Town) -> None:
    go = threading.Event()
    below, port = town.below()
    town.above(port, ANNE, on_call=lambda data: (go.wait(5) and data) or data)
    until(lambda: ANNE in below.connected())
    threading.Timer(0.1, below.expel, (ANNE, frozenset())).start()
    began = time.monotonic()
    assert below.call(ANNE, b"?", 5) is None
    assert time.monotonic() - began < 2
    go.set()


def test_a_child_tells_its_parent_something(town: Town) -> None:
    heard: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
    below, port = town.below(on_call=lambda *told: heard.put(told))
    above = town.above(port, ANNE)
    until(lambda: above.connected)
    assert above.tell(b"accuracy 0.9")
    assert heard.get(timeout=5) == (ANNE, b"accuracy 0.9")
    assert works(below, above)


# -- connections that end --------------------------------------------------------------------------------------------------


def test_a_child_comes_back_when_its_parent_restarts_on_the_same_port(town: Town) -> None:
    below, port = town.below()
    above = town.above(port, ANNE)
    until(lambda: above.connected)
    below.close()
    until(lambda: not above.connected)
    assert not above.send(b"x")
    until(lambda: town.told[above].of("not there yet"))
    assert "nobody listens at 127.0.0.1" in town.told[above].of("not there yet")[0]
    again, _ = town.below(port=port)
    until(lambda: again.connected() and above.connected)
    assert works(again, above)
    assert town.told[above].of("lost") == ["the parent stopped"]


def test_of_two_with_one_certificate_the_newer_stays_and_is_told(town: Town) -> None:
    below, port = town.below()
    shows = town.identity(ANNE)
    old = town.above(port, shows)
    until(lambda: old.connected)
    new = town.above(port, shows)
    until(lambda: town.told[below].of("lost"))
    assert "connected anew" in town.told[below].of("lost")[0]
    until(lambda: town.told[old].of("lost"))
    assert "does this node run twice?" in town.told[old].of("lost")[0]
    old.close()
    until(lambda: new.connected and below.connected())
    assert works(below, new)


def test_another_certificate_of_a_connected_child_is_refused(town: Town) -> None:
    below, above = town.pair()
    other = town.above(int(above._address.rpartition(":")[2]), ANNE)
    until(lambda: town.told[below].of("refused"))
    assert "connected already, with another certificate" in town.told[below].of("refused")[0]
    assert works(below, above)
    assert not other.connected


# -- who is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [STRANGER, PARENT])
def test_a_node_that_is_no_child_is_refused_by_name(town: Town, who: str) -> None:
    below, above = town.pair()
    other = town.above(port_of(above), who)
    until(lambda: town.told[other].of("refused"))
    assert town.told[other].of("refused") == ["this node is not a child of that one"]
    assert ("refused", who) in [event[:2] for event in town.told[below]]
    assert below.connected() == {ANNE}
    assert works(below, above)


def test_a_child_may_be_admitted_and_expelled_while_all_goes_on(town: Town) -> None:
    below, above = town.pair()
    shows = town.identity(STRANGER)
    new = town.above(port_of(above), shows)
    until(lambda: town.told[new].of("refused"))
    below.admit(STRANGER, "new")
    until(lambda: new.connected)
    assert works(below, new, STRANGER)
    below.expel(STRANGER, frozenset({serial_of(shows.certificate)}))
    assert not below.send(STRANGER, b"x")
    until(lambda: town.told[new].of("lost"))
    assert town.told[new].of("lost") == ["the certificate is revoked"]
    assert ("revoked", STRANGER, "its connection was closed") in town.told[below]
    below.admit(STRANGER, "new")
    until(lambda: "the certificate is revoked" in town.told[new].of("refused"))
    again = town.above(port_of(above), STRANGER)
    until(lambda: again.connected)
    assert works(below, above)


def test_a_revoked_certificate_is_refused_from_the_start(town: Town) -> None:
    shows = town.identity(ANNE)
    below, port = town.below(revoked=frozenset({serial_of(shows.certificate)}))
    above = town.above(port, shows)
    until(lambda: town.told[above].of("refused"))
    assert town.told[above].of("refused") == ["the certificate is revoked"]
    assert "the certificate is revoked" in town.told[below].of("refused")[0]
    assert not below.connected()


def test_without_a_certificate_of_this_federation_nobody_comes_in_and_that_is_told(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorman, "PATIENCE", 0.3)
    below, above = town.pair()
    mixed = town.identity(ANNE, authority=town.foreign)
    foreign = town.above(port_of(above), Identity(mixed.certificate, mixed.key, town.authority.certificate))
    until(lambda: town.told[foreign].of("refused"))
    assert "does not accept our certificate" in town.told[foreign].of("refused")[0]
    foreign.close()
    assert nameless(town, port_of(above)) is grpc.StatusCode.UNAVAILABLE
    with socket.create_connection(("127.0.0.1", port_of(above))) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    until(lambda: town.told[below].of("refused"))
    assert "no certificate" in town.told[below].of("refused")[0]
    assert len(town.told[below].of("refused")) == 1  # the same again is told once a minute
    assert works(below, above)


def nameless(town: Town, port: int) -> Any:
    """Dial without any certificate and return how that ended."""
    trusted = grpc.ssl_channel_credentials(town.authority.certificate)
    options = [("grpc.ssl_target_name_override", f"{PARENT}.palmette.invalid"), ("grpc.enable_http_proxy", 0)]
    with grpc.secure_channel(f"127.0.0.1:{port}", trusted, options) as channel:
        call = channel.stream_stream(TALK)(iter([b"x"]), timeout=5)
        with pytest.raises(grpc.RpcError):
            next(call)
        return call.code()


def port_of(above: Above) -> int:
    """The port that an end dials."""
    return int(above._address.rpartition(":")[2])


def test_a_child_talks_to_its_own_parent_only(town: Town) -> None:
    other = identity("f", 1, "another team")
    cases = {
        "but not the node that it must be": town.identity(other, serves=True),
        "a device's certificate": town.identity(PARENT, serves=False),
        "not of this federation": town.identity(PARENT, serves=True, authority=town.foreign),
    }
    for words, shows in cases.items():
        below, port = town.below(shows=shows)
        above = town.above(port, ANNE)
        until(lambda above=above: town.told[above].of("refused"))  # type: ignore[misc]
        assert words in town.told[above].of("refused")[0]
        assert not below.connected()
        above.close()


def test_plain_text_stays_on_this_machine(town: Town) -> None:
    told = Told()
    settings: dict[str, Any] = {"limit": LIMIT, "on_event": told, "on_call": lambda *_: b""}
    for address in ("0.0.0.0:0", "192.168.1.20:7001", "[::]:0", "example.org:1"):
        with pytest.raises(BadInput, match="not this machine alone"):
            Below(address, None, {}, **settings)
        with pytest.raises(BadInput, match="not this machine alone"):
            Above(address, None, PARENT, **settings)
    with pytest.raises(BadInput, match="a host and a port"):
        Below("127.0.0.1", None, {}, **settings)
    below = Below("127.0.0.1:0", None, {ANNE: "Anne"}, **settings)
    above = Above(f"127.0.0.1:{below.start()}", None, PARENT, own=ANNE, **settings)
    above.start()
    until(lambda: above.connected)
    assert works(below, above)
    above.close()
    below.close()


def test_a_taken_port_and_a_wrong_key_are_told(town: Town) -> None:
    _, port = town.below()
    with pytest.raises(BadInput, match="cannot be opened"):
        town.below(port=port)
    one, other = town.identity(PARENT, serves=True), town.identity(PARENT, serves=True)
    with pytest.raises(BadInput, match="cannot be opened"):
        town.below(shows=Identity(one.certificate, other.key, one.authority))
    with pytest.raises(BadInput, match="no certificate"):
        town.below(shows=Identity(b"?", other.key, one.authority))
    child = town.above(port, Identity(one.certificate, other.key, one.authority))
    until(lambda: town.told[child].of("refused"))
    assert not child.connected


def test_an_end_that_is_closed_at_once_is_closed(town: Town) -> None:
    began = time.monotonic()
    for _ in range(5):
        town.above(1, ANNE).close()
    assert time.monotonic() - began < 2


# -- bytes that are no message ---------------------------------------------------------------------------------------------

GOOD = HEADER.pack(Kind.MAIL, 1, 0, 3) + b"abc"
BAD = {
    "not a piece": b"short",
    "the kind 9": HEADER.pack(9, 1, 0, 0),
    "the kind 1": HEADER.pack(Kind.CALL, 1, 0, 0),
    "the mark 2": HEADER.pack(Kind.MAIL, 2, 0, 0),
    "does not continue": HEADER.pack(Kind.MAIL, 1, 0, 9) + b"abc",
    "3 bytes of 1": HEADER.pack(Kind.MAIL, 1, 0, 1) + b"abc",
    "all but the last": HEADER.pack(Kind.MAIL, 0, 0, 9) + b"abc",
    f"at most {LIMIT} are": HEADER.pack(Kind.MAIL, 0, 0, 1 << 62) + bytes(1 << 16),
}


@pytest.mark.parametrize("words", BAD)
def test_what_is_no_message_ends_that_connection_alone(town: Town, words: str) -> None:
    below, above = town.pair()
    code = talk(town, port_of(above), [GOOD, BAD[words], GOOD])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    kind = "oversized" if "at most" in words else "malformed"
    assert [words in detail for detail in town.told[below].of(kind)] == [True]
    assert below.mail.get(timeout=5) == (BEN, b"abc")
    assert below.mail.get(timeout=5) == (BEN, None)
    assert works(below, above)


def test_a_frame_beyond_what_grpc_takes_ends_that_connection_alone(town: Town) -> None:
    below, above = town.pair()
    assert talk(town, port_of(above), [bytes(frames.FRAME + 1)]) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert below.mail.get(timeout=5) == (BEN, None)
    assert works(below, above)


def talk(town: Town, port: int, sent: list[bytes]) -> Any:
    """Be a child that sends what it likes, and return how that ended."""
    with dialled(town, port) as channel:
        going = threading.Event()
        call = channel.stream_stream(TALK)(stream(sent, going), timeout=10)
        with pytest.raises(grpc.RpcError):
            list(call)
        going.set()
        return call.code()


def dialled(town: Town, port: int) -> Any:
    """Ben's connection without our class."""
    shows = town.identity(BEN)
    trusted = grpc.ssl_channel_credentials(shows.authority, shows.key, shows.certificate)
    options = [("grpc.ssl_target_name_override", f"{PARENT}.palmette.invalid"), ("grpc.enable_http_proxy", 0)]
    return grpc.secure_channel(f"127.0.0.1:{port}", trusted, options)


def stream(sent: list[bytes], going: threading.Event) -> Iterator[bytes]:
    """Send, and keep the connection."""
    yield from sent
    going.wait(10)


# -- back pressure ---------------------------------------------------------------------------------------------------------


def test_a_child_that_does_not_read_makes_nothing_grow(town: Town) -> None:
    below, above = town.pair()
    data = bytes(LIMIT)
    sent = 0
    while below.send(ANNE, data) or (not time.sleep(0.3) and below.send(ANNE, data)):
        sent += 1
        assert sent < 40
    assert sent < 16
    for _ in range(sent):
        assert above.mail.get(timeout=5)[1] == data
    assert works(below, above)


def test_a_parent_that_does_not_read_one_child_makes_nothing_grow_and_hears_the_others(town: Town) -> None:
    below, above = town.pair()
    data = bytes(LIMIT)
    sent = 0
    while above.send(data) or (not time.sleep(0.3) and above.send(data)):
        sent += 1
        assert sent < 40
    assert sent < 16
    ben = town.above(port_of(above), BEN)
    until(lambda: ben.connected)
    assert ben.send(b"hello")
    came = [below.mail.get(timeout=5) for _ in range(sent + 1)]
    assert came.count((ANNE, data)) == sent
    assert (BEN, b"hello") in came


def test_the_bytes_of_a_broadcast_wait_without_copies(town: Town) -> None:
    below, port = town.below()
    with dialled(town, port) as channel:
        going = threading.Event()
        call = channel.stream_stream(TALK)(stream([], going), metadata=((OWN, BEN),), timeout=10)
        until(lambda: BEN in below.connected())
        data = bytes(LIMIT)
        while below.send(BEN, data):
            pass
        assert {id(waiting) for waiting in below._streams[BEN]._mail} == {id(data)}
        going.set()
        call.cancel()


# -- the operator ----------------------------------------------------------------------------------------------------------


def test_the_operator_asks_and_nobody_else(town: Town) -> None:
    def answered(data: bytes) -> bytes:
        if data == b"nonsense":
            raise BadInput("there is no such thing; there is status")
        return b"all well: " + data

    below, port = town.below(operator=OPERATOR, on_operate=answered)
    address, shows = f"127.0.0.1:{port}", town.identity(OPERATOR)
    assert operate(address, shows, PARENT, b"status", 5) == b"all well: status"
    with pytest.raises(BadInput, match="there is status"):
        operate(address, shows, PARENT, b"nonsense", 5)
    with pytest.raises(BadInput, match="only the operator may"):
        operate(address, town.identity(ANNE), PARENT, b"status", 5)
    with pytest.raises(BadInput, match="not of this federation"):
        operate(address, town.identity(OPERATOR, authority=town.foreign), PARENT, b"status", 5)
    with pytest.raises(BadInput, match="not the node that it must be"):
        operate(address, shows, ANNE, b"status", 5)
    child = town.above(port, shows)
    until(lambda: town.told[child].of("refused"))
    assert town.told[child].of("refused") == ["the operator is no child"]
    below.expel(OPERATOR, frozenset({serial_of(shows.certificate)}))
    with pytest.raises(BadInput, match="is revoked"):
        operate(address, shows, PARENT, b"status", 5)
    below.close()
    with pytest.raises(BadInput, match="nobody listens"):
        operate(address, shows, PARENT, b"status", 5)


def test_an_operator_who_waits_too_long_is_told(town: Town) -> None:
    go = threading.Event()
    _, port = town.below(operator=OPERATOR, on_operate=lambda data: (go.wait(5) and data) or data)
    with pytest.raises(BadInput, match=r"did not answer within 0\.2 s"):
        operate(f"127.0.0.1:{port}", town.identity(OPERATOR), PARENT, b"status", 0.2)
    go.set()


def test_a_missing_package_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from palmette.errors import BadInput\n"
        "try: import palmette.deploy.tls\n"
        "except BadInput as error: assert \"pip install 'palmette[deploy]'\" in str(error)\n"
        "else: assert False"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
