"""Who may come in at a parent's end, and why others may not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from palmette.deploy.certificates import serial_of
from palmette.deploy.events import Events
from palmette.deploy.tls import OWN, Identity, grpc

PATIENCE = 10.0  # seconds from a connection to the first word on it


class Doorman:
    """Knows the children, the operator and the revoked certificates, and counts who never got as far as to be known.

    A connection without a certificate, or with one of another authority, ends within TLS: gRPC tells nobody who it was or why.
    But it asks for our certificate at the beginning of each, so those that never said a word are counted and told.
    """

    def __init__(
        self, children: Mapping[str, str], operator: str | None, revoked: frozenset[int], events: Events
    ) -> None:
        """Begin.

        Args:
            children: Their names by id.
            operator: The operator's id.
            revoked: Serial numbers of certificates that are refused.
            events: Is told of those who never said a word.
        """
        self.children, self.operator, self.revoked = dict(children), operator, revoked
        self._events = events
        self._due = self._spoke = 0  # connections that should have said a word by now, or were told; that did

    def credentials(self, identity: Identity) -> Any:
        """Return gRPC's credentials of a server that demands certificates of this federation."""
        pair = [(identity.key, identity.certificate)]
        configuration = grpc.ssl_server_certificate_configuration(pair, identity.authority)
        running = asyncio.get_running_loop()

        def came() -> None:  # in a thread of gRPC's core; None leaves the certificates as they are
            running.call_soon_threadsafe(running.call_later, PATIENCE, self._judge)

        return grpc.dynamic_ssl_server_credentials(configuration, came, True)

    def who(self, context: Any, plain: bool) -> tuple[str, int]:
        """Return the id that a caller shows, and the serial number of its certificate; in plain text whatever it says."""
        self._spoke += 1  # both ends of ours say one word on a connection
        if plain:
            return str(dict(context.invocation_metadata()).get(OWN, "")), 0
        shown = context.auth_context()
        return shown["x509_common_name"][0].decode(errors="replace"), serial_of(shown["x509_pem_cert"][0])

    def refusal(self, who: str, serial: int, *, operates: bool) -> str:
        """Say why somebody may not do what they want; an empty text where they may."""
        if serial in self.revoked:
            return "the certificate is revoked"
        if operates:
            return "" if who == self.operator else "only the operator may do this"
        if who in self.children:
            return ""
        return "the operator is no child" if who == self.operator else "this node is not a child of that one"

    def name(self, who: str) -> str:
        """Return what to call somebody in an event: their id, if they are known."""
        return who if who in self.children or who == self.operator else who[:64]

    def _judge(self) -> None:
        self._due += 1
        if self._due > self._spoke:
            self._due -= 1
            self._events.sometimes(
                "refused",
                "",
                "a connection ended before a word was said: it has no certificate, or one of another authority or not valid by "
                "this machine's clock, or speaks no TLS",
            )
