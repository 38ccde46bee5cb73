"""Events of a link, told to its owner; the same refusal again and again is told once a minute, with how often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

OnEvent = Callable[[str, str, str], None]
"""Is told what happened (``"connected"``, ``"lost"``, ``"refused"``, ``"not there yet"``, ``"oversized"``, ``"malformed"``,
``"revoked"``), to whom, and details. It is called in the thread of the loop: it must return at once, and must not wait for an
end of a link."""
_EVERY = 60.0  # seconds
_KNOWN = 256  # different refusals; a stranger may make up any number
_log = logging.getLogger("palmette.deploy")


class Events:
    """Hands events on."""

    def __init__(self, on_event: OnEvent) -> None:
        """Begin.

        Args:
            on_event: Is told.
        """
        self._on_event = on_event
        self._told: dict[tuple[str, str, str], tuple[float, int]] = {}  # when it was told last, and how often not since

    def always(self, kind: str, who: str, detail: str) -> None:
        """Tell an event."""
        try:
            self._on_event(kind, who, detail)
        except Exception:  # whatever the owner does wrong, the links live on
            _log.exception("an event could not be told: %s %s %s", kind, who, detail)

    def sometimes(self, kind: str, who: str, detail: str) -> None:
        """Tell an event that a stranger could cause in a loop."""
        key, now = (kind, who, detail), time.monotonic()
        if key not in self._told and len(self._told) >= _KNOWN:
            self._told = {known: seen for known, seen in self._told.items() if now - seen[0] < _EVERY}
            if len(self._told) >= _KNOWN:
                key = (kind, "", "more different ones than can be told")
        when, often = self._told.get(key, (-_EVERY, 0))
        if now - when < _EVERY:
            self._told[key] = when, often + 1
            return
        self._told[key] = now, 0
        self.always(*key[:2], key[2] + (f" (and {often} times more since it was told last)" if often else ""))

    def forget(self, who: str) -> None:
        """Tell the next refusal of somebody at once: they were here in between."""
        self._told = {key: seen for key, seen in self._told.items() if key[1] != who}
