"""A stand-in for an object store: `python -m tests.support.store_front s3|gs [CERTIFICATE]`.

A well-known emulator does what a store does; before it stands a small proxy that adds what
a real store has and an emulator lacks: time (latency), trouble (faults) and a log of the
requests. It prints its ports, for http and https, and ends when its standard input is closed.

Paths below `/__stand_in__/` are for tests: `store_servers.StoreServer` asks for them.
"""

import json
import os
import re
import socketserver
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from tests.support.http_stand_in import HttpStandIn, Reply, Request, ask, json_reply

ADMIN = "/__stand_in__/"


class Front(HttpStandIn):
    """The proxy before an emulator at `port`, which takes so many requests `at_once`."""

    def __init__(self, port: int, at_once: int, certificate: str | None = None):
        super().__init__(certificate=certificate)
        self._emulator_port = port
        self._at_once = threading.Semaphore(at_once)
        self._one_by_one = threading.Lock()
        self._latency_sec = 0.0
        self._replay = ""
        self._log: list[tuple[str, str, int]] = []
        self._kept: dict[tuple[str, str | None], Reply] = {}

    def set(self, latency_sec: float | None = None, replay: str | None = None) -> None:
        """How long each request waits, and whose GETs are answered as the first time."""
        if latency_sec is not None:
            self._latency_sec = latency_sec
        if replay is not None:
            self._replay = replay
            self._kept.clear()

    def answer(self, request: Request) -> Reply | None:
        """What the emulator says, or a fault; tests' own requests are neither late nor logged."""
        if request.path.startswith(ADMIN):
            return self._administer(request.path.removeprefix(ADMIN), request.body)
        time.sleep(self._latency_sec)
        kind = self.fault(request)
        if kind is None:
            return self._forward(request)
        is_status = isinstance(kind, int)
        self._log.append((request.command, request.path, kind if is_status else 0))
        if is_status:
            return Reply(kind)
        if kind == "no_range":
            del request.headers["Range"]
            return self._forward(request)
        if kind == "short":
            status, body, headers = self._forward(request)
            request.say(status, body[:1000], {**(headers or {}), "Content-Length": str(len(body))})
        if kind == "hang":
            self.ended.wait()
        if kind == "drop_answer":
            self._forward(request)
        request.close_connection = True
        return None

    def _administer(self, what: str, body: bytes) -> Reply:
        if what == "log":
            return json_reply(self._log)
        calls: dict[str, Callable[..., None]]
        calls = {"set": self.set, "fail": self.fail, "heal": self.heal, "clear": self._log.clear}
        calls[what](**json.loads(body))
        return json_reply({})

    def _forward(self, request: Request) -> Reply:
        method, target = request.command, request.path
        key = (target, request.headers.get("Range"))
        if method == "GET" and key in self._kept:
            self._log.append((method, target, 200))
            return self._kept[key]
        if method == "GET" and re.search(r"/storage/v1/b/[^/]+/o\?.*maxResults=", target):
            return _paged(target, self._ask(request))
        # The emulator does not look at conditions; nothing may come between one and its request.
        wanted = re.search(r"[?&]ifGenerationMatch=(\d+)", target)
        if "/storage/v1/" not in target or (method in ("GET", "HEAD") and wanted is None):
            return self._ask(request)
        with self._one_by_one:
            if wanted is not None and self._generation(request) != wanted[1]:
                self._log.append((method, target, 412))
                return json_reply({"error": {"message": "conditionNotMet"}}, 412)
            return self._ask(request)

    def _generation(self, request: Request) -> str:
        bucket = request.path.split("/b/")[1].split("/")[0]
        name = _uploaded_name(request.path, request.body)
        with self._at_once:
            found = ask(self._emulator_port, "GET", f"/storage/v1/b/{bucket}/o/{name}", {})
        return str(json.loads(found.body)["generation"]) if found.status == 200 else "0"

    def _ask(self, request: Request) -> Reply:
        method, target = request.command, request.path
        with self._at_once:
            reply = ask(self._emulator_port, method, target, dict(request.headers), request.body)
        if method == "POST" and "/upload/" in target and "name=" not in target:
            target = f"{target}&name={_uploaded_name(target, request.body)}"
        self._log.append((method, target, reply.status))
        if method == "GET" and self._replay and self._replay in target and reply.status < 300:
            self._kept[(target, request.headers.get("Range"))] = reply
        return reply


def _uploaded_name(target: str, body: bytes) -> str:
    """The name of the object that an upload to gs:// or a read from there is for, quoted."""
    named = re.search(r"[?&]name=([^&]*)|^/download/.*/o/([^?]*)", target)
    if named:
        return named[1] or named[2]
    # In the first part of the body, as JSON.
    found = re.search(rb'"name":\s*("(?:[^"\\]|\\.)*")', body)
    return urllib.parse.quote(json.loads(found[1]) if found else "", safe="")


def _paged(target: str, reply: Reply) -> Reply:
    """One page of what the emulator of gs:// gives whole."""
    if reply.status != 200:
        return reply
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(target).query)
    whole = json.loads(reply.body)
    after, start = (asked.get(name, [""])[0] for name in ("pageToken", "startOffset"))
    listed = (item for item in whole.get("items", ()) if item["name"] >= start)
    items = {item["name"]: item for item in listed if item["name"] > after}
    prefixes = {name for name in whole.get("prefixes", ()) if name > after}
    names = sorted([*items, *prefixes])
    page = names[: int(asked["maxResults"][0])]
    shown: dict[str, Any] = {"kind": "storage#objects"}
    if found := [items[name] for name in page if name in items]:
        shown["items"] = found
    if below := [name for name in page if name in prefixes]:
        shown["prefixes"] = below
    if len(page) < len(names):
        shown["nextPageToken"] = page[-1]
    return json_reply(shown)


def _emulator(kind: str) -> tuple[int, int]:
    """Starts an emulator in threads; its port, and how many requests it takes at once."""
    if kind == "s3":
        from moto.server import ThreadedMotoServer

        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        return moto.get_host_and_port()[1], 8
    from gcp_storage_emulator.server import create_server
    from gcp_storage_emulator.storage import Storage

    # After every change it writes its whole index, for a next process; here there is none.
    Storage._write_config_to_file = lambda self: None
    # It sends an answer in pieces, each of which would wait 40 ms for the one before to be seen.
    socketserver.StreamRequestHandler.disable_nagle_algorithm = True
    emulator = create_server("127.0.0.1", 0, in_memory=True)
    emulator.start()
    # One thread, and a queue of five connections.
    return emulator._api._httpd.server_address[1], 2


def _main(kind: str, certificate: str | None = None) -> None:
    with Front(*_emulator(kind), certificate) as front:
        print(front.port, front.https_url.rpartition(":")[2] or 0, flush=True)
        sys.stdin.read()
    os._exit(0)  # the emulators' threads have nothing to save


if __name__ == "__main__":
    _main(*sys.argv[1:])
