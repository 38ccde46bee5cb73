"""Who is who in a federation: a certificate authority of its own, certificates of nodes, and the list of revoked ones.

Everything is ECDSA on the curve P-256, which every TLS library knows (gRPC's refuses Ed25519). A node is known by an opaque id,
so that names may be any text and nobody who sees a certificate learns what a device is called.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from palmette.errors import BadInput

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as missing:
    raise BadInput(
        f"certificates need the package {missing.name!r}, which is not installed; run: pip install 'palmette[deploy]'"
    ) from None

CERTIFICATE, KEY, REVOKED = "ca.pem", "ca.key", "revoked.pem"
_SUFFIX = ".palmette.invalid"  # a top-level name that never exists, so no certificate of ours fits a real host
_EARLY = timedelta(days=1)  # clocks of small machines are often wrong by hours
_AUTHORITY_DAYS, _LIST_DAYS = 7300, 36500
_PEM = serialization.Encoding.PEM


def identity(federation: str, tier: int, name: str) -> str:
    """Return the opaque id of a node: 32 hexadecimal digits that its certificate shows instead of its name.

    Args:
        federation: The federation's name.
        tier: The node's tier; 0 for devices, -1 for an operator, who is no node.
        name: The node's name, any text.
    """
    return hashlib.sha256(json.dumps([federation, tier, name]).encode()).hexdigest()[:32]


def host(id: str) -> str:  # noqa: A002 - what it is called everywhere
    """Return the host name in the certificate of a node, which a client checks instead of the address it dials."""
    return id + _SUFFIX


@dataclass(frozen=True)
class Credentials:
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Authority:
    """The certificate authority of one federation, in a folder of its own.

    The folder holds ``ca.pem``, which every node has; ``ca.key``, which only the machine has that enrols nodes; and
    ``revoked.pem``, the signed list of revoked certificates.

    Attributes:
        folder: Where it is.
        certificate: The authority's own certificate, as PEM.
    """

    folder: Path
    certificate: bytes

    @classmethod
    def create(cls, folder: str | Path, federation: str) -> Authority:
        """Make the authority of a new federation; a folder that has one already is left alone.

        Args:
            folder: Where it goes; made if it is not there.
            federation: The federation's name.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / KEY).exists():
            raise BadInput(f"{folder} has a certificate authority already; open it, or name another folder")
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        name = _name(f"Palmette {identity(federation, 0, '')}")
        builder = _builder(name, name, key, now, now + timedelta(days=_AUTHORITY_DAYS))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        certificate = builder.sign(key, hashes.SHA256())
        _write(folder / CERTIFICATE, certificate.public_bytes(_PEM))
        _write(folder / REVOKED, _list(certificate, key, {}, 1))
        _write(folder / KEY, _key_bytes(key), mode=0o600)  # last: with it, the authority is there
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Authority:
        """Open the authority in a folder.

        Args:
            folder: The folder that `create` was given.
        """
        folder = Path(folder)
        for name in (CERTIFICATE, KEY, REVOKED):
            if not (folder / name).is_file():
                raise BadInput(f"{folder} is no certificate authority: it has no file {name}")
        certificate = (folder / CERTIFICATE).read_bytes()
        if _key(folder).public_key() != _certificate(certificate).public_key():
            raise BadInput(f"{folder / KEY} is not the key of {folder / CERTIFICATE}")
        return cls(folder, certificate)

    def issue(self, id: str, *, days: int = 365, serves: bool = True) -> Credentials:  # noqa: A002
        """Make a certificate and a key for a node; the key is kept nowhere else.

        Args:
            id: The node's `identity`.
            days: How long it is valid, from now; it begins a day earlier, for clocks that are wrong.
            serves: Whether others may dial the node; False for devices and operators, so that none can pose as a team server.
        """
        if len(id) != 32 or set(id) - set("0123456789abcdef"):
            raise BadInput(f"the id of a node has 32 hexadecimal digits, as `identity` returns; not {id[:64]!r}")
        if not 1 <= days <= _AUTHORITY_DAYS:
            raise BadInput(f"a certificate is valid for 1 to {_AUTHORITY_DAYS} days, not {days}")
        authority, key, now = _certificate(self.certificate), ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        end = min(now + timedelta(days=days), authority.not_valid_after_utc)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if serves else [])]
        builder = _builder(_name(id), authority.subject, key, now, end)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host(id))]), critical=False)
        certificate = builder.sign(_key(self.folder), hashes.SHA256())
        return Credentials(certificate.public_bytes(_PEM), _key_bytes(key))

    def revoke(self, certificate: int | bytes) -> frozenset[int]:
        """Add a certificate to the list of revoked ones, and return all serial numbers on it.

        Args:
            certificate: The certificate as PEM, or its serial number.
        """
        serial = certificate if isinstance(certificate, int) else serial_of(certificate)
        with _alone(self.folder):
            before = _revoked((self.folder / REVOKED).read_bytes(), self.certificate)
            dates = {one.serial_number: one.revocation_date_utc for one in before}
            if serial not in dates:
                number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
                dates[serial] = datetime.now(UTC)
                signed = _list(_certificate(self.certificate), _key(self.folder), dates, number + 1)
                _write(self.folder / REVOKED, signed)
        return frozenset(dates)

    @property
    def revoked(self) -> frozenset[int]:
        """Serial numbers of all revoked certificates."""
        return read_revoked((self.folder / REVOKED).read_bytes(), self.certificate)


def read_revoked(crl_pem: bytes, ca_pem: bytes) -> frozenset[int]:
    """Return the serial numbers on a list of revoked certificates.

    Args:
        crl_pem: The list, from anybody.
        ca_pem: The certificate of the authority that must have signed it.

    Raises:
        BadInput: The list cannot be read, or this authority did not sign it.
    """
    return frozenset(one.serial_number for one in _revoked(crl_pem, ca_pem))


def serial_of(certificate: bytes) -> int:
    """Return the serial number of a certificate, by which it is revoked."""
    return _certificate(certificate).serial_number


def clock_problem(certificate: bytes, now: datetime | None = None) -> str:
    """Say in plain words why a certificate is not valid by this machine's clock; an empty text where it is.

    Args:
        certificate: The certificate, as PEM.
        now: The time to judge by; this machine's clock if not given.
    """
    read, now = _certificate(certificate), now or datetime.now(UTC)
    begin, end = read.not_valid_before_utc, read.not_valid_after_utc
    told = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC"
    if now < begin:
        return f"the certificate is valid from {begin:%Y-%m-%d %H:%M} UTC, but {told}: set the clock"
    if now > end:
        return f"the certificate ended on {end:%Y-%m-%d %H:%M} UTC, and {told}: set the clock if it is wrong, else issue anew"
    return ""


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, now: datetime, end: datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _EARLY).not_valid_after(end)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    signs = signs_certificates
    others = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    no = dict.fromkeys(others, False)
    return x509.KeyUsage(digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **no)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _list(certificate: x509.Certificate, key: Any, dates: dict[int, datetime], number: int) -> bytes:
    now = datetime.now(UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(certificate.subject)
    builder = builder.last_update(now - _EARLY).next_update(now + timedelta(days=_LIST_DAYS))
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for serial, date in dates.items():
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
        builder = builder.add_revoked_certificate(one)
    return builder.sign(key, hashes.SHA256()).public_bytes(_PEM)


def _certificate(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise BadInput(f"this is no certificate in the format PEM: {error}") from None


def _revoked(crl_pem: bytes, ca_pem: bytes) -> x509.CertificateRevocationList:
    authority = _certificate(ca_pem)
    try:
        found = x509.load_pem_x509_crl(crl_pem)
        signed = found.issuer == authority.subject and found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadInput(f"the list of revoked certificates cannot be read: {error}") from None
    if not signed:
        raise BadInput("the list of revoked certificates is not signed by this federation's authority; do not use it")
    return found


def _key(folder: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadInput(f"{folder / KEY} is no private key in the format PEM without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{folder / KEY} is no key of an elliptic curve, as `Authority.create` makes")
    return key


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder for one process: of two that revoke at once, neither may lose its entry."""
    with open(folder / CERTIFICATE, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file whole or not at all; nobody else can read a key at any moment."""
    number, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(number, "wb") as file:
            os.fchmod(number, mode)
            file.write(data)
            file.flush()
            os.fsync(number)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
