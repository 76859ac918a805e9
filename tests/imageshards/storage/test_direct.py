"""Our signatures of GETs are botocore's."""

from __future__ import annotations

import datetime

import pytest
from botocore import awsrequest, credentials
from botocore.auth import S3SigV4Auth

from imageshards.storage.direct import Signer, signature_scope

WHEN = datetime.datetime(2026, 11, 21, 23, 59, 59, tzinfo=datetime.UTC)


@pytest.mark.parametrize("token", [None, "session+token/=="])
@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("photos.s3.eu-central-1.amazonaws.com", "/cat/a.jpg"),
        ("127.0.0.1:9000", "/photos/a%20b/%C3%BC%2B%25.jpg"),
        ("s3.example.org", "/photos//double/../a~b_c.jpg"),
    ],
)
def test_signatures_are_those_of_botocore(host, target, token, monkeypatch):
    given = credentials.Credentials("AKID", "secret/key", token)
    scope = "eu-central-1/s3"

    request = awsrequest.AWSRequest("GET", f"https://{host}{target}")
    request.context["signing"] = {}
    auth = S3SigV4Auth(given, "s3", "eu-central-1")
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: WHEN)
    auth.add_auth(request)

    ours = Signer(given, host, scope).headers(target, WHEN)
    theirs = {name.lower(): value for name, value in request.headers.items()}
    assert ours["authorization"] == theirs["authorization"]
    assert ours["x-amz-date"] == theirs["x-amz-date"]
    assert ours.get("x-amz-security-token") == theirs.get("x-amz-security-token")
    assert signature_scope(ours["authorization"]) == scope


def test_the_key_is_of_the_day_and_of_the_secret():
    scope = "us-east-1/s3"
    given = credentials.Credentials("AKID", "one")
    signer = Signer(given, "h", scope)
    for day in range(3):
        for secret in ("one", "two"):
            given.secret_key = secret
            when = WHEN + datetime.timedelta(days=day)
            fresh = Signer(credentials.Credentials("AKID", secret), "h", scope)
            assert signer.headers("/x", when) == fresh.headers("/x", when)


@pytest.mark.parametrize(
    "authorization",
    ["", "AWS AKID:abc=", "AWS4-ECDSA-P256-SHA256 Credential=AKID/20261121/s3/aws4_request, x"],
)
def test_other_kinds_of_signatures_are_left_to_the_library(authorization):
    assert signature_scope(authorization) is None
