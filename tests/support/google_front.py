"""Google's own addresses for gs://, as a proxy on loopback answers them from an emulator.

TensorFlow's client knows no other address than Google's, but it takes a proxy (`https_proxy`)
and a list of certificates (`CURL_CA_BUNDLE`) from its environment, as Google's own library does.
"""

import pathlib
import urllib.parse

from tests.support import http_stand_in
from tests.support.http_stand_in import HttpStandIn, Reply, Request, json_reply

HOSTS = [f"{name}.googleapis.com" for name in ("www", "storage", "oauth2", "iamcredentials")]


class GoogleFront(HttpStandIn):
    """The proxy before an emulator of gs://, with its certificate in a folder.

    Attributes:
        environ: What a process has to have in its environment to take it for Google.
        callers: Whose access token each GET of contents had; empty without one. Of others there
            may be stragglers: Google's library asks about buckets in a thread of its own.
    """

    def __init__(self, emulator_port: int, folder: pathlib.Path):
        super().__init__()
        certificate = folder / "google.pem"
        certificate.write_bytes(http_stand_in.self_signed(*HOSTS))
        self._tls = http_stand_in.server_tls(certificate)
        self._emulator_port = emulator_port
        names = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
        self.environ = {"https_proxy": self.url} | dict.fromkeys(names, str(certificate))
        self.callers: list[str] = []

    def answer(self, request: Request) -> Reply | None:
        if request.command == "CONNECT":  # from here on the client talks to Google, as it believes
            request.host = request.path.partition(":")[0]
            request.say(200, headers={"Content-Length": ""})
            request.start_tls(self._tls)
            return None
        if request.command == "POST":
            return self._token(request)
        path, span = request.path, request.headers.get("Range", "")
        if "alt=media" in path:
            self.callers.append(request.headers.get("Authorization", "").removeprefix("Bearer "))
        is_api = path.startswith(("/storage/v1/", "/download/storage/v1/"))
        if request.host != HOSTS[0] and not is_api:
            bucket, _, name = path.partition("?")[0][1:].partition("/")
            quoted = urllib.parse.quote(urllib.parse.unquote(name), safe="")
            path = f"/download/storage/v1/b/{bucket}/o/{quoted}?alt=media"
        return self.fetch(path, span)

    def fetch(self, path: str, span: str) -> Reply:
        """Asks the emulator; the slow store of the benchmarks answers itself."""
        return http_stand_in.ask(self._emulator_port, "GET", path, {"Range": span} if span else {})

    def _token(self, request: Request) -> Reply:
        """A user's own access token, or that of an account it may act as."""
        if request.host == HOSTS[3]:
            account = request.path.rpartition("/")[2].partition(":")[0]
            return json_reply({"accessToken": account, "expireTime": "2999-01-01T00:00:00Z"})
        return json_reply({"access_token": "user", "expires_in": 3600, "token_type": "Bearer"})
