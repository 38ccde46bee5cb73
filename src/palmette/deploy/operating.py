"""The operator's end: one question to a node of a running federation, and its answer."""

from __future__ import annotations

from palmette.deploy.tls import OPERATE, OWN, Identity, check, dialled, grpc, in_words
from palmette.errors import BadInput


def operate(
    address: str, identity: Identity | None, parent_id: str, data: bytes, timeout: float, *, own: str = ""
) -> bytes:
    """Ask a node something as its operator, and return the answer.

    Args:
        address: The node's ``host:port``.
        identity: The operator's certificate; ``None`` for plain text, on this machine only.
        parent_id: The id that the node's certificate must have.
        data: The question, at most 4 MB, as the answer.
        timeout: Seconds.
        own: The operator's id in plain text.

    Raises:
        BadInput: The node cannot be reached, is not the one it must be, refuses, or does not answer in time.
    """
    check(address, identity)
    trusted, options = dialled(address, parent_id, identity)
    channel = (
        grpc.insecure_channel(address, options) if trusted is None else grpc.secure_channel(address, trusted, options)
    )
    with channel:
        try:
            told = ((OWN, own),) if own else None
            return bytes(channel.unary_unary(OPERATE)(data, timeout=timeout, metadata=told))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise BadInput(f"{address} did not answer within {timeout:g} s") from None
            raise BadInput(in_words(address, identity, error.code(), error.details() or "")) from None
