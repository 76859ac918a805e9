"""Images at addresses of a real server: what comes, what does not, and where nobody connects."""

import concurrent.futures
import socket
import time

import pytest

from beam_pipeline.images import read as read_module
from beam_pipeline.images import urls as urls_module
from beam_pipeline.images.read import read_images
from beam_pipeline.images.urls import fetch_url, is_public
from beam_pipeline.options import UrlOptions
from beam_pipeline.planning.refs import ImageRef
from imageshards import storage
from imageshards.errors import ImageError
from tests.support.http_stand_in import self_signed
from tests.support.web_server import HTML, WebServer

pytestmark = pytest.mark.process

PICTURES = {
    "/a.jpg": b"aaaa", "/b%20%C3%A9.jpg": b"bb", "/empty": b"", "/large": bytes(1001),
}  # fmt: skip
FAST = UrlOptions((1.0, 0.3, 0.8), url_retries=0, allow_private_hosts=True)
STEADY = UrlOptions((9.0, 9.0, 20.0), url_retries=0, allow_private_hosts=True)
PATIENT = UrlOptions((9.0, 9.0, 20.0), url_retries=2, allow_private_hosts=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(urls_module, "BACKOFF_S", 0.01)


@pytest.fixture(scope="module")
def server():
    with WebServer(PICTURES) as server:
        yield server


def fetch(url, options=STEADY):
    """Bytes, or the code and the message of the error."""
    found = fetch_url(url, 1000, options)
    return (found.code, found.message) if isinstance(found, ImageError) else (found, "")


ANSWERS = [
    ("/a.jpg", b"aaaa", ""),
    ("/b é.jpg", b"bb", ""),
    ("/empty", b"", ""),
    ("/html", HTML, ""),
    ("/to?/to?/a.jpg", b"aaaa", ""),
    ("/long", b"x" * 10, ""),
    ("/digits", b"x", ""),
    ("/none.jpg", "http_404", "none.jpg answered 404 Not Found"),
    ("/status/503", "http_503", "answered 503"),
    ("/status/204", "http_204", "answered 204"),
    ("/loop", "url_redirects", "more than 5 redirects"),
    ("/to?ftp://x/y", "url_redirects", "redirects to ftp://x/y, which is not http(s)://"),
    ("/to?http://[", "url_redirects", "redirects to 'http://[', which is no address"),
    ("/large", "too_many_bytes", "1001 bytes; the limit is 1000"),
    ("/endless", "too_many_bytes", "the limit of 1000"),
    ("/short", "url_incomplete", "ended early"),
    ("/reset", "url_unreachable", "cannot be reached"),
    ("/silent", "url_timeout", "sent nothing for 0.3 s"),
    ("/drip", "url_timeout", "was not there in 0.8 s"),
    ("/drip_head", "url_timeout", "was not there in 0.8 s"),
]


@pytest.mark.parametrize(("path", "expected", "words"), ANSWERS)
def test_answers_become_bytes_or_rejects(server, path, expected, words):
    found, message = fetch(server.url + path, FAST if expected == "url_timeout" else STEADY)
    assert found == expected and words in message


@pytest.mark.parametrize(
    ("path", "expected", "times"),
    [
        ("/flaky/2/a.jpg", b"aaaa", 3),
        ("/status/429?retry_after=1", "http_429", 3),
        ("/gone", "http_404", 1),
        # No wait goes beyond the time of an image.
        ("/status/503?retry_after=600", "http_503", 1),
    ],
)
def test_only_temporary_failures_are_retried(server, path, expected, times):
    found, message = fetch(server.url + path, PATIENT)
    assert found == expected and server.times_asked(path) == times
    assert ("; tried 3 times" in message) == (found == "http_429")


def test_a_host_has_a_limit_of_requests_and_keeps_connections():
    """And waiting for a turn, 3.2 s in all, is not the server's time."""
    options = UrlOptions((9.0, 9.0, 2.8), 0, url_requests_per_host=3, allow_private_hosts=True)
    with WebServer(PICTURES) as server:
        refs = [ImageRef(str(i), f"{server.url}/slow/0.4/a.jpg", "a") for i in range(24)]
        assert {data for _, data in read_images(refs, 100, options)} == {b"aaaa"}
        assert server.most_at_once == 3
        assert server.connections < 15


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]"])
def test_nobody_connects_to_a_private_host(server, host):
    before = server.connections
    code, message = fetch(f"http://{host}:{server.port}/a.jpg", UrlOptions())
    assert code == "url_private_address" and "--allow_private_hosts permits it" in message
    assert server.connections == before


def test_a_redirect_or_a_name_does_not_lead_to_a_private_host(server, monkeypatch):
    """127.0.0.1 stands for a host of the internet, 127.0.0.2 for one that is not."""
    monkeypatch.setattr(urls_module, "is_public", lambda address: address == "127.0.0.1")
    answers, real = {"inside.test": "127.0.0.2"}, socket.getaddrinfo

    def resolve(host, *more, **named):
        return real(answers.get(host, host), *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    strict = UrlOptions(url_retries=0)
    with WebServer(PICTURES, address="127.0.0.2") as inside:
        assert fetch(server.url + "/a.jpg", strict)[0] == b"aaaa"
        for target in (inside.url, f"http://inside.test:{inside.port}"):
            for url in (f"{server.url}/to?{target}/a.jpg", f"{target}/a.jpg"):
                assert fetch(url, strict)[0] == "url_private_address"
        assert inside.connections == 0


PUBLIC = ("93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822")
PRIVATE = (
    "127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 "
    "240.0.0.1 255.255.255.255 ::1 :: fe80::1%eth0 fd00::1 fec0::1 ff02::1 ::ffff:10.0.0.1 "
    "::127.0.0.1 64:ff9b::a00:1 2002:7f00:1::1 2001:db8::1"
).split()


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE])
def test_only_addresses_of_the_internet_are_public(address):
    assert is_public(address) == (address in PUBLIC)


def test_unreachable_and_invalid_addresses_are_told_apart():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert fetch(f"http://127.0.0.1:{closed.getsockname()[1]}/a.jpg")[0] == "url_unreachable"
    assert fetch("http://does-not-exist.invalid/a.jpg")[0] == "url_unreachable"
    for url in ("http:///a.jpg", "http://[::1/a.jpg"):
        assert fetch(url)[0] == "url_invalid"


def test_a_connection_that_nobody_accepts_is_a_timeout():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = [socket.socket() for _ in range(4)]
        for other in others:  # what the kernel accepts without the program
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        options = UrlOptions((0.2, 1.0, 3.0), 0, allow_private_hosts=True)
        code, message = fetch(f"http://127.0.0.1:{full.getsockname()[1]}/", options)
        assert code == "url_timeout" and "let nobody connect for 0.2 s" in message
        for other in others:
            other.close()


def test_https_is_checked_and_timed(tmp_path, monkeypatch):
    path = tmp_path / "server.pem"
    path.write_bytes(self_signed("localhost"))
    with WebServer(PICTURES, certificate=path) as server:
        root = server.https_url
        assert "cannot be trusted" in fetch(root + "/a.jpg")[1]
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        urls_module._forget_pools()
        assert fetch(root + "/a.jpg")[0] == b"aaaa"
        began = time.monotonic()
        for path in ("/drip", "/drip_head"):
            assert fetch(root + path, FAST)[0] == "url_timeout"
        assert time.monotonic() - began < 60  # neither ever ends by itself
    urls_module._forget_pools()


def test_one_list_may_mix_files_stores_and_addresses(server, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"local")
    odd = server.url.upper().replace("HTTP", "Http")
    places = [str(tmp_path / "x.jpg"), f"{odd}/a.jpg", f"{server.url}/none"]
    refs = [ImageRef(place, place, "a") for place in places]
    found = [data for _, data in read_images(refs, 100, STEADY)]
    assert found[:2] == [b"local", b"aaaa"]
    assert isinstance(found[2], ImageError)


class AtOnce(concurrent.futures.Executor):
    """Reads a file as soon as it is asked for: nothing depends on how fast threads are."""

    def submit(self, fn, /, *args, **kwargs):
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize(
    ("sizes_bytes", "least", "most"),
    [
        ([1000] * 300, 40_000, 48_000),
        ([1_000_000] * 20, 2_000_000, 4_000_000),
        ([1000, 1000, 1000, 1_000_000] * 20, 2_000_000, 5_000_000),
    ],
    ids=["small", "large", "mixed"],
)
def test_files_of_unknown_size_count_in_what_is_read_ahead(monkeypatch, sizes_bytes, least, most):
    monkeypatch.setattr(read_module, "_threads", AtOnce)
    monkeypatch.setattr(read_module, "_AHEAD_BYTES", 4_000_000)
    monkeypatch.setattr(read_module, "_UNKNOWN_BYTES", 1_000_000)
    pictures = {f"/{i}.jpg": bytes(size) for i, size in enumerate(sizes_bytes)}
    with WebServer(pictures) as server:
        refs = [ImageRef(path, server.url + path, "a") for path in pictures]
        before, in_flight = storage.counts().bytes_read, []
        for _, data in read_images(refs, 2_000_000, STEADY):
            assert isinstance(data, bytes)
            in_flight.append(storage.counts().bytes_read - before)
            before += len(data)
    assert len(in_flight) == len(refs)
    assert least <= max(in_flight) <= most
