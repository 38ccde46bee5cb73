"""Certificates: who issued them, for whom, from when to when, and which are revoked."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from palmette.deploy.certificates import Authority, clock_problem, host, identity, read_revoked, serial_of
from palmette.errors import BadInput

DEVICE = identity("hospitals", 0, "Ürümqi/Nord\n\ud800")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("ca"), "hospitals")


def test_an_id_tells_apart_whatever_differs_and_says_nothing() -> None:
    nodes = [("a", 0, "b"), ("a", 1, "b"), ("ab", 0, ""), ("a", 0, "b "), ('a", 0, "', 0, "b"), ("a", -1, "b")]
    ids = {identity(*node) for node in nodes}
    assert len(ids) == len(nodes)
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in ids)


def test_a_certificate_shows_the_id_and_fits_the_key(authority: Authority) -> None:
    issued = authority.issue(DEVICE)
    certificate = x509.load_pem_x509_certificate(issued.certificate)
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == DEVICE
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [host(DEVICE)] == [f"{DEVICE}.palmette.invalid"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert b"PRIVATE KEY" in issued.key


@pytest.mark.parametrize("serves", [True, False])
def test_a_device_cannot_serve(authority: Authority, serves: bool) -> None:
    certificate = x509.load_pem_x509_certificate(authority.issue(DEVICE, serves=serves).certificate)
    purposes = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert purposes == {ExtendedKeyUsageOID.CLIENT_AUTH} | ({ExtendedKeyUsageOID.SERVER_AUTH} if serves else set())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_only_the_owner_can_read_the_key_and_nothing_else_is_left_behind(authority: Authority) -> None:
    assert stat.S_IMODE((authority.folder / "ca.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in authority.folder.iterdir()) == ["ca.key", "ca.pem", "revoked.pem"]


def test_an_authority_is_opened_again_and_never_made_twice(authority: Authority) -> None:
    assert Authority.open(authority.folder) == authority
    with pytest.raises(BadInput, match="has a certificate authority already"):
        Authority.create(authority.folder, "hospitals")


def test_what_is_no_authority_says_so(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no file ca\.pem"):
        Authority.open(tmp_path)
    other = Authority.create(tmp_path / "other", "hospitals")
    (other.folder / "ca.key").write_bytes((authority.folder / "ca.key").read_bytes())
    with pytest.raises(BadInput, match="is not the key of"):
        Authority.open(other.folder)
    (other.folder / "ca.key").write_bytes(b"?")
    with pytest.raises(BadInput, match="is no private key"):
        Authority.open(other.folder)


def test_wrong_ids_and_times_are_refused(authority: Authority) -> None:
    for wrong in ("", "device-3", DEVICE.upper(), DEVICE + "0"):
        with pytest.raises(BadInput, match="32 hexadecimal digits"):
            authority.issue(wrong)
    with pytest.raises(BadInput, match="1 to 7300 days"):
        authority.issue(DEVICE, days=0)


def test_a_wrong_clock_is_told_in_plain_words(authority: Authority) -> None:
    issued, now = authority.issue(DEVICE, days=30).certificate, datetime.now(UTC)
    assert clock_problem(issued) == clock_problem(issued, now - timedelta(hours=23)) == ""
    assert "this machine's clock says" in clock_problem(issued, now - timedelta(days=2))
    assert clock_problem(issued, now - timedelta(days=2)).endswith("set the clock")
    assert "ended on" in clock_problem(issued, now + timedelta(days=31))


def test_certificates_are_revoked_by_themselves_or_by_number(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "hospitals")
    assert authority.revoked == frozenset()
    first, second = (authority.issue(DEVICE).certificate for _ in range(2))
    authority.revoke(first)
    assert authority.revoke(serial_of(second)) == authority.revoke(first) == {serial_of(first), serial_of(second)}
    crl = (tmp_path / "revoked.pem").read_bytes()
    assert read_revoked(crl, authority.certificate) == Authority.open(tmp_path).revoked == authority.revoke(first)
    assert x509.load_pem_x509_crl(crl).extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 3


def test_of_two_who_revoke_at_once_both_are_heard(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path, "hospitals")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(authority.revoke, range(1, 13)))
    assert authority.revoked == set(range(1, 13))


def test_a_list_that_the_authority_did_not_sign_is_not_believed(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path, "hospitals")
    other.revoke(1)
    crl = (tmp_path / "revoked.pem").read_bytes()
    with pytest.raises(BadInput, match="not signed by this federation's authority"):
        read_revoked(crl, authority.certificate)
    for damaged in (b"", b"?", crl[:100], other.certificate):
        with pytest.raises(BadInput, match="cannot be read"):
            read_revoked(damaged, other.certificate)
    with pytest.raises(BadInput, match="no certificate in the format PEM"):
        read_revoked(crl, b"?")
