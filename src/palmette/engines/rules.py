"""Programs run by the rules of `palmette.protocol`: what breaks one ends in a sentence with the method and the fix."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from palmette.errors import ProtocolError
from palmette.links.sparse import Sparse
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, PerChild, Replies, Server, State
from palmette.task.layout import Layout
from palmette.tree import Tree

Answer = tuple[Any, State]


HIDDEN = "~"
"""How the names of rows begin that the learner itself keeps of a device; programs do not see them."""


def kept(method: Algorithm, tree: Tree, tier: int, layout: Layout, initial: Tensor) -> State:
    """Return what the nodes of a tier keep, as the algorithm declares it."""
    who = _who(method, "keeps")
    with named(method, "keeps"):
        rows = method.keeps(Node.of_tier(tree, tier, layout), initial)
    if not isinstance(rows, Mapping) or not all(isinstance(row, Tensor) for row in rows.values()):
        raise ProtocolError(
            f'{who} must return rows by name, as in {{"model": initial}}, or {{}}; for tier {tier} it returned '
            f"{_said(rows)}"
        )
    if hidden := [name for name in rows if str(name).startswith(HIDDEN)]:
        raise ProtocolError(f"{who} declares a row {hidden[0]!r}; names that begin with {HIDDEN!r} are Palmette's own")
    if tier == tree.top and "model" not in rows:
        raise ProtocolError(f'{who} must give the server a row named "model" (tier {tier}), the global model')
    if "model" in rows and rows["model"].shape != initial.shape:
        raise ProtocolError(
            f'{who} declares a row "model" of shape {tuple(rows["model"].shape)} for tier {tier}; a model has '
            f"{tuple(initial.shape)}"
        )
    return rows


def stored(method: Algorithm, tree: Tree, tier: int, layout: Layout, initial: Tensor, work: State) -> State:
    """Return all rows kept of the nodes of a tier: the algorithm's, and those of the devices' local work."""
    hidden = {HIDDEN + name: row for name, row in work.items()} if tier == 0 else {}
    return {**kept(method, tree, tier, layout, initial), **hidden}


class Visible(Mapping[str, Tensor]):
    """What a program sees of the rows kept of its nodes, each read when it is first looked at."""

    def __init__(self, rows: State, declared: State) -> None:
        self._rows, self._names = rows, [name for name in declared if not name.startswith(HIDDEN)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def of_work(rows: State, declared: State) -> dict[str, Tensor]:
    """Return what the local work of devices sees of the rows kept of them."""
    return {name.removeprefix(HIDDEN): rows[name] for name in declared if name.startswith(HIDDEN)}


def server(method: Algorithm, node: Node, state: State, declared: State) -> Server:
    """Run the server's program for one round."""
    after: State = yield from _asks(method, "server", method.server(node, state), must_ask=node.round == 0)
    _check_state(method, "server", after, node, declared)
    return after


def team(method: Algorithm, node: Node, message: Any, state: State, declared: State) -> Inner:
    """Run the program of inner nodes for one message."""
    answer = yield from _asks(method, "team", method.team(node, message, state))
    return _checked(method, "team", answer, node, declared)


def device(method: Algorithm, node: Device, message: Any, state: State, declared: State) -> Answer:
    """Run the program of devices for one message; the state returned includes what their local work keeps."""
    with named(method, "device"):
        answer = method.device(node, message, Visible(state, declared))
    if isinstance(answer, Generator):
        raise ProtocolError(f"{_who(method, 'device')} must not yield: a device has nobody to ask; return its reply")
    shown = {name: row for name, row in declared.items() if not name.startswith(HIDDEN)}
    reply, after = _checked(method, "device", answer, node, shown)
    return reply, {**after, **{HIDDEN + name: rows for name, rows in node.kept.items()}}


def adapt(method: Algorithm, node: Device, parent: Tensor, state: State, declared: State) -> dict[str, Tensor]:
    """Make devices' own models from their parents', as rows by name; the row ``model`` is among them."""
    with named(method, "adapt"):
        made = method.adapt(node, parent, Visible(state, declared))
    rows = dict(made) if isinstance(made, Mapping) else {"model": made}
    if not isinstance(rows.get("model"), Tensor) or rows["model"].shape != parent.shape:
        raise ProtocolError(
            f"{_who(method, 'adapt')} must return one model per device, rows of shape {tuple(parent.shape)}, or rows by name "
            f"with these as 'model'; it returned {_said(made)}"
        )
    if unknown := set(rows) - {"model"} - set(declared):
        raise ProtocolError(f"{_who(method, 'adapt')} returned the row {min(unknown)!r}, which keeps does not declare")
    return rows


@contextmanager
def named(method: Algorithm, word: str) -> Iterator[None]:
    """Let an error of the protocol say whose it is, unless it does already."""
    try:
        yield
    except ProtocolError as error:
        if str(error).startswith(f"{type(method).__name__}."):
            raise
        raise ProtocolError(f"{_who(method, word)}: {error}") from error


def asking(method: Algorithm, node: Node) -> Any:
    """Let an error in an ask of some nodes say whose it is."""
    return named(method, "server" if node.tier == node.tree.top else "team")


def _asks(method: Algorithm, word: str, program: Any, *, must_ask: bool = False) -> Generator[Ask, Replies, Any]:
    """Pass on what a program asks, and return what it returns."""
    who = _who(method, word)
    if not isinstance(program, Generator):
        raise ProtocolError(
            f"{who} has no yield: it must ask its children before it returns, as in `replies = yield pm.Ask(message)`"
        )
    asked = 0
    with named(method, word):
        try:
            ask = next(program)
            while True:
                asked += 1
                ask = program.send((yield _ask(who, ask)))
        except StopIteration as end:
            if must_ask and not asked:
                raise ProtocolError(
                    f"{who} returned without asking anybody, so nothing would be learned: ask with "
                    "`replies = yield pm.Ask(message)`, or let devices work by themselves with `yield pm.Ask(None)`"
                ) from None
            return end.value


def _ask(who: str, asked: Any) -> Ask:
    if isinstance(asked, Ask):
        return asked
    if asked is None or isinstance(asked, Tensor | PerChild | Sparse | Mapping):
        return Ask(asked)  # type: ignore[arg-type]  # Sparse rows are rows; protocol does not know how links pack them
    raise ProtocolError(
        f"{who} yielded {_said(asked)}; it must yield pm.Ask(message), or the message itself: rows, or rows and numbers by "
        "name"
    )


def _checked(method: Algorithm, word: str, answer: Any, node: Node, declared: State) -> Answer:
    who = _who(method, word)
    if not isinstance(answer, tuple) or len(answer) != 2:
        keep = "{}" if not declared else "{" + ", ".join(f'"{name}": ...' for name in declared) + "}"
        raise ProtocolError(
            f"{who} must return two things, its reply and what it keeps, as in `return reply, {keep}`; it returned "
            f"{_said(answer)}"
        )
    reply, state = answer
    for name, value in reply.items() if isinstance(reply, Mapping) else [("", reply)]:
        if not isinstance(name, str):
            raise ProtocolError(f'{who} replied with the key {name!r}; names are text, as in {{"model": rows}}')
        rows = value.rows if isinstance(value, Sparse) else value
        if rows is None and not name:
            continue
        if not isinstance(rows, Tensor) or rows.dim() == 0 or len(rows) != len(node):
            what = f"the reply {name!r}" if name else "a reply"
            raise ProtocolError(
                f"{who} returned {_said(value)} as {what}; it must be rows, one per node of the stack ({len(node)}), "
                "a mapping of names to rows, or None"
            )
    _check_state(method, word, state, node, declared)
    return reply, state


def _check_state(method: Algorithm, word: str, state: Any, node: Node, declared: State) -> None:
    """Refuse a state that is not what `keeps` declares: it would be dropped, or spread over other nodes' rows."""
    who = _who(method, word)
    if not isinstance(state, Mapping):
        raise ProtocolError(
            f"{who} must return what it keeps by name, {sorted(declared)} as keeps declares; it returned {_said(state)}"
        )
    if state.keys() != declared.keys():
        raise ProtocolError(
            f"{who} returned the state {sorted(state)}, but keeps declares {sorted(declared)} for tier {node.tier}: make the "
            "two agree"
        )
    for name, row in declared.items():
        rows, shape = state[name], (len(node), *row.shape)
        if not isinstance(rows, Tensor) or tuple(rows.shape) != shape:
            raise ProtocolError(
                f"{who} returned {_said(rows)} as the state {name!r}; keeps declares rows of shape {tuple(row.shape)}, so for "
                f"{len(node)} nodes it must have shape {shape}"
            )
        if not torch.can_cast(rows.dtype, row.dtype):
            raise ProtocolError(
                f"{who} returned the state {name!r} as {rows.dtype}, but keeps declares {row.dtype}, which cannot hold it"
            )


def _who(method: Algorithm, word: str) -> str:
    return f"{type(method).__name__}.{word}"


def _said(value: Any) -> str:
    """Describe a value in a few words."""
    if isinstance(value, Tensor):
        return f"rows of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a mapping of {sorted(map(str, value))}"
    if isinstance(value, tuple):
        return f"{len(value)} things"
    if value is None:
        return "nothing"
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {value!r}"[:80]
