"""What both ends of a link share: identities, the settings of gRPC, and its errors in plain words."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Any

from palmette.deploy.certificates import clock_problem
from palmette.errors import BadInput

# gRPC's core writes what strangers do to standard error, line by line, and would fill a disk. GRPC_VERBOSITY=INFO shows it,
# with the reasons of handshakes that failed, which are told nowhere else.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import grpc as grpc
    import grpc.aio
except ModuleNotFoundError:
    raise BadInput(
        "a federation on real machines needs the package 'grpcio', which is not installed; run: "
        "pip install 'palmette[deploy]'"
    ) from None

from palmette.deploy.frames import FRAME

SERVICE = "palmette.deploy.v1"
TALK, OPERATE = f"/{SERVICE}/Talk", f"/{SERVICE}/Operate"
OWN = "palmette-own"  # who we are where no certificate says it
WELCOME = ("palmette", "1")  # what a parent sends to a child that it takes

_ALIVE = 5_000  # milliseconds between signs of life, and for their answer: a cut link is noticed within ten seconds
OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", FRAME),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", _ALIVE),
    ("grpc.keepalive_timeout_ms", _ALIVE),
    ("grpc.http2.ping_timeout_ms", 4 * _ALIVE),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", (1 << 24) - 1),
)
SERVES = (
    *OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", _ALIVE // 5),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.so_reuseport", 0),  # a second server on one port is an error, not a lottery
)
_DIALS = (
    *OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # every attempt is one of its own: we pause between them, not gRPC
    ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one attempt may take
    ("grpc.enable_retries", 0),
)


@dataclass(frozen=True)
class Identity:
    """What a node shows, and whom it trusts; all as PEM.

    Attributes:
        certificate: Its own certificate.
        key: The key of that.
        authority: The certificate of its federation's authority.
    """

    certificate: bytes
    key: bytes
    authority: bytes


def check(address: str, identity: Identity | None) -> None:
    """Refuse what is no address, plain text to or from another machine, and what is no certificate.

    Args:
        address: ``host:port``.
        identity: ``None`` for plain text.
    """
    if identity is not None:
        clock_problem(identity.certificate), clock_problem(identity.authority)
    name, colon, port = address.rpartition(":")
    if not (name and colon and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise BadInput(f"an address is a host and a port, as in 192.168.1.20:7001; not {address[:64]!r}")
    if identity is None and not _loopback(name):
        raise BadInput(f"{address[:64]!r} is not this machine alone, and plain text goes no further: give an identity")


def _loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def dialled(address: str, parent: str, identity: Identity | None) -> tuple[Any, tuple[tuple[str, Any], ...]]:
    """Return credentials (``None`` for plain text) and options of a channel to a parent."""
    options = _DIALS
    if _loopback(address.rpartition(":")[0]):
        options = (*options, ("grpc.enable_http_proxy", 0))
    if identity is None:
        return None, options
    trusted = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    # Only who has this name is our parent, whatever the address leads to.
    return trusted, (*options, ("grpc.ssl_target_name_override", f"{parent}.palmette.invalid"))


_FOREIGN = "who answers at {at} is not of this federation: another authority signed its certificate"
_CLOSED = (
    "{at} ended the connection before anything was said: it does not accept our certificate (another federation's, or not "
    "valid by its clock), or it is no node of Palmette"
)
NOBODY = "nobody listens at {at}"
_WORDS = (
    ("certificate has expired", "{at} shows a certificate that has ended by this machine's clock: is the clock right?"),
    ("not yet valid", "{at} shows a certificate that is not valid yet by this machine's clock: set the clock"),
    (
        "unsupported certificate purpose",
        "who answers at {at} shows a device's certificate, with which nobody may serve",
    ),
    ("certificate signature failure", _FOREIGN),
    ("CERTIFICATE_VERIFY_FAILED", _FOREIGN),
    ("WRONG_VERSION_NUMBER", "who answers at {at} does not speak TLS"),
    ("Hostname Verification", "who answers at {at} is of this federation, but not the node that it must be"),
    ("Connection refused", NOBODY),
    ("Socket closed", _CLOSED),
    ("Connection reset", _CLOSED),
)


def in_words(address: str, identity: Identity | None, code: Any, details: str) -> str:
    """Say what an error of gRPC means, as far as TLS lets one know.

    A server that refuses a certificate within the handshake only closes the connection, so its reason is not known here; what
    we find wrong with the server's certificate is.
    """
    if code is grpc.StatusCode.UNAVAILABLE:
        ours = "" if identity is None else clock_problem(identity.certificate)
        if ours:
            return ours
        for found, words in _WORDS:
            if found in details:
                return words.format(at=address)
        return f"{address} cannot be reached: {details}"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"who answers at {address} is no node of this version of Palmette"
    return details or f"{address} answered {code.name}"
