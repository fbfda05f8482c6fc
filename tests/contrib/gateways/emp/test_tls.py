"""EMP over TLS, with authorities that are made for these tests."""

from __future__ import annotations

import datetime as dt

import pytest
import trustme

from eventmq.errors import BrokerUnavailable, NotAllowed
from eventmq_contrib.gateways.emp import EmpClient, client_context
from tests.contrib.gateways.raw_emp import split

HOST = "127.0.0.1"


class Authority:
    """An authority and files with its certificates."""

    def __init__(self, folder, name):
        self._folder = folder
        self._name = name
        self._ca = trustme.CA()
        self.path = str(folder / f"{name}.pem")
        self._ca.cert_pem.write_to_path(self.path)

    def issue(self, *names, **more):
        """Return the path of a file with a certificate, its chain and its key."""
        cert = self._ca.issue_cert(*names, **more)
        path = self._folder / f"{self._name}-{len(list(self._folder.iterdir()))}.pem"
        blobs = [cert.private_key_pem, *cert.cert_chain_pems]
        path.write_bytes(b"".join(blob.bytes() for blob in blobs))
        return str(path)


@pytest.fixture
def ours(tmp_path):
    return Authority(tmp_path, "ours")


@pytest.fixture
def others(tmp_path):
    return Authority(tmp_path, "others")


@pytest.fixture
def serve(start):
    def serve(cert, ca="", bind="tcp://127.0.0.1:0"):
        return start("emp", bind=bind, tls_cert=cert, tls_ca=ca)[0]

    return serve


def echo(address, context, **more):
    _, port = split(address)
    with EmpClient(HOST, port, tls=context, **more) as client:
        return client.call("$echo", {"a": 1})


def test_a_client_that_trusts_the_authority_is_served(serve, ours):
    address = serve(ours.issue(HOST))
    assert {"a": 1} == echo(address, client_context(ca=ours.path))


def test_a_client_with_a_certificate_is_served_where_one_is_asked_for(serve, ours):
    address = serve(ours.issue(HOST), ours.path)
    context = client_context(ca=ours.path, cert=ours.issue("client@example.org"))
    assert {"a": 1} == echo(address, context)


def refused(address, context, **more):
    with pytest.raises(BrokerUnavailable):
        echo(address, context, **more)


def test_a_server_of_another_authority_is_refused(serve, ours, others):
    refused(serve(others.issue(HOST)), client_context(ca=ours.path))


def test_a_server_with_another_name_is_refused(serve, ours):
    refused(serve(ours.issue("elsewhere.example.org")), client_context(ca=ours.path))


def test_a_certificate_that_has_expired_is_refused(serve, ours):
    past = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    refused(serve(ours.issue(HOST, not_after=past)), client_context(ca=ours.path))


def test_a_client_of_another_authority_is_refused(serve, ours, others):
    address = serve(ours.issue(HOST), ours.path)
    refused(address, client_context(ca=ours.path, cert=others.issue("client@example.org")))
    good = client_context(ca=ours.path, cert=ours.issue("client@example.org"))
    assert {"a": 1} == echo(address, good)


def test_a_client_whose_certificate_has_expired_is_refused(serve, ours):
    past = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    cert = ours.issue("client@example.org", not_after=past)
    refused(serve(ours.issue(HOST), ours.path), client_context(ca=ours.path, cert=cert))


def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(serve, ours):
    refused(serve(ours.issue(HOST), ours.path), client_context(ca=ours.path))


def test_a_client_in_the_clear_is_refused(serve, ours):
    refused(serve(ours.issue(HOST)), None, timeout=2.0)


def test_others_may_reach_it_only_with_certificates_of_their_own(serve, ours):
    """Encryption is not enough: any client could submit jobs."""
    cert = ours.issue(HOST)
    with pytest.raises(NotAllowed, match="--tls-ca"):
        serve(cert, bind="tcp://0.0.0.0:0")
    assert serve(cert, ours.path, bind="tcp://0.0.0.0:0")
