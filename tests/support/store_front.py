"""A stand-in for an object store, as a process: `python store_front.py s3|gs [CERTIFICATE]`.

A well-known emulator does what a store does; before it stands a small proxy that adds what
a real store has and an emulator lacks: time (latency), trouble (faults) and a log of the
requests. It prints its ports, for http and https, and ends when its standard input is closed.

Paths below `/__stand_in__/` are for tests: `store_servers.StoreServer` asks for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socketserver
import ssl
import sys
import threading
import urllib.parse
from typing import Any, NamedTuple

ADMIN = "/__stand_in__/"
_HOP_HEADERS = {"connection", "transfer-encoding", "content-length", "keep-alive", "expect"}


class Message(NamedTuple):
    """A request or a response, whole."""

    first: str
    headers: list[tuple[str, str]]
    body: bytes

    def get(self, name: str) -> str:
        """A header's value, or nothing."""
        return next((v for n, v in self.headers if n.lower() == name), "")


async def _read_message(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, is_head: bool = False
) -> Message:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)]
    message = Message(first, headers, b"")
    if writer is not None and message.get("expect").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if is_head:
        return message
    return message._replace(body=await _read_body(reader, message, writer is not None))


async def _read_body(reader: asyncio.StreamReader, message: Message, is_request: bool) -> bytes:
    if "chunked" in message.get("transfer-encoding").lower():
        pieces = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readline()
        while (await reader.readline()).strip():
            pass  # trailers
        return b"".join(pieces)
    length = message.get("content-length")
    if length:
        return await reader.readexactly(int(length))
    return b"" if is_request else await reader.read()


def _packed(message: Message, is_head: bool = False) -> bytes:
    lines = [message.first]
    lines += [f"{n}: {v}" for n, v in message.headers if n.lower() not in _HOP_HEADERS]
    length = message.get("content-length") if is_head else str(len(message.body))
    lines += [f"Content-Length: {length or 0}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + message.body


def _answer(status: int, body: bytes = b"", kind: str = "application/json") -> Message:
    return Message(f"HTTP/1.1 {status} Stand-in", [("Content-Type", kind)], body)


class Front:
    """The proxy: what tests have set, and what was asked."""

    def __init__(self, port: int, at_once: int):
        self._port = port
        self._at_once = asyncio.Semaphore(at_once)
        self._one_by_one = asyncio.Lock()
        self.latency_sec = 0.0
        self.replay = ""
        self._faults: list[dict[str, Any]] = []
        self._log: list[tuple[str, str, int]] = []
        self._kept: dict[tuple[str, str], bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                request = await _read_message(reader, writer)
                reply = await self._reply(request)
                if reply is None:
                    writer.transport.abort()
                    return
                writer.write(reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _reply(self, request: Message) -> bytes | None:
        method, target = request.first.split(" ")[:2]
        if target.startswith(ADMIN):
            return _packed(self._administer(target.removeprefix(ADMIN), request.body))
        if self.latency_sec:
            await asyncio.sleep(self.latency_sec)
        fault = self._fault(method, target)
        if fault is not None:
            self._log.append((method, target, fault if isinstance(fault, int) else 0))
            if fault == "no_range":
                headers = [(n, v) for n, v in request.headers if n.lower() != "range"]
                return await self._forward(method, target, request._replace(headers=headers))
            if fault == "hang":
                await asyncio.sleep(3600)
            if fault == "drop_answer":
                await self._forward(method, target, request)
            return _packed(_answer(fault)) if isinstance(fault, int) else None
        return await self._forward(method, target, request)

    async def _forward(self, method: str, target: str, request: Message) -> bytes:
        key = (target, request.get("range"))
        if method == "GET" and key in self._kept:
            self._log.append((method, target, 200))
            return self._kept[key]
        if method == "GET" and re.search(r"/storage/v1/b/[^/]+/o\?.*maxResults=", target):
            return _paged(target, await self._ask(method, target, request))
        if method in ("GET", "HEAD") or "/storage/v1/" not in target:
            return await self._ask(method, target, request)
        # The emulator does not look at conditions; nothing may come between one and its write.
        wanted = re.search(r"[?&]ifGenerationMatch=(\d+)", target)
        async with self._one_by_one:
            if wanted is not None and await self._generation(target, request) != wanted[1]:
                self._log.append((method, target, 412))
                return _packed(_answer(412, b'{"error": {"message": "conditionNotMet"}}'))
            return await self._ask(method, target, request)

    async def _generation(self, target: str, request: Message) -> str:
        bucket = target.split("/b/")[1].split("/")[0]
        asked = f"/storage/v1/b/{bucket}/o/{_uploaded_name(target, request.body)}"
        reply = await self._ask("GET", asked, Message(f"GET {asked} HTTP/1.1", [], b""), False)
        found = re.search(rb'"generation":\s*"(\d+)"', reply)
        return found[1].decode() if found else "0"

    async def _ask(self, method: str, target: str, request: Message, logged: bool = True) -> bytes:
        async with self._at_once:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                sent = request._replace(headers=[*request.headers, ("Connection", "close")])
                writer.write(
                    _packed(sent).replace(b"Content-Length: 0\r\n", b"")
                    if method in ("GET", "HEAD")
                    else _packed(sent)
                )
                reply = await _read_message(reader, None, is_head=method == "HEAD")
            finally:
                writer.close()
        status = int(reply.first.split(" ")[1])
        if logged and method == "POST" and "/upload/" in target and "name=" not in target:
            self._log.append((method, f"{target}&name={_uploaded_name(target, sent.body)}", status))
        elif logged:
            self._log.append((method, target, status))
        reply = reply._replace(first="HTTP/1.1 " + reply.first.partition(" ")[2])
        packed = _packed(reply, is_head=method == "HEAD")
        if method == "GET" and self.replay and self.replay in target and status in (200, 206):
            self._kept[(target, request.get("range"))] = packed
        return packed

    def _fault(self, method: str, target: str) -> int | str | None:
        for fault in self._faults:
            if fault["times"] and fault["method"] in ("", method) and fault["matching"] in target:
                fault["times"] -= 1
                return fault["kind"]
        return None

    def _administer(self, what: str, body: bytes) -> Message:
        given = json.loads(body or b"{}")
        if what == "set":
            self.latency_sec = given.get("latency_sec", self.latency_sec)
            if "replay" in given:
                self.replay = given["replay"]
                self._kept.clear()
        elif what == "fail":
            self._faults.append(given)
        elif what == "heal":
            self._faults.clear()
        elif what == "log":
            return _answer(200, json.dumps(self._log).encode())
        elif what == "clear":
            self._log.clear()
        return _answer(200, b"{}")


def _uploaded_name(target: str, body: bytes) -> str:
    """The name of the object that an upload to gs:// is for, quoted."""
    named = re.search(r"[?&]name=([^&]*)", target)
    if named:
        return named[1]
    # In the first part of the body, as JSON.
    found = re.search(rb'"name":\s*("(?:[^"\\]|\\.)*")', body)
    return urllib.parse.quote(json.loads(found[1]) if found else "", safe="")


def _paged(target: str, reply: bytes) -> bytes:
    """One page of what the emulator of gs:// gives whole."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return reply
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(target).query)
    whole = json.loads(body)
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
    return _packed(_answer(200, json.dumps(shown).encode()))


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


async def _main(kind: str, certificate: str = "") -> None:
    front = Front(*_emulator(kind))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
    if tls:
        tls.load_cert_chain(certificate)
    server = await asyncio.start_server(front.serve, "127.0.0.1", 0, limit=1 << 26)
    safe = await asyncio.start_server(front.serve, "127.0.0.1", 0, limit=1 << 26, ssl=tls)
    print(*(each.sockets[0].getsockname()[1] for each in (server, safe)), flush=True)
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def wait_for_parent() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(closed.set)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    await closed.wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
    os._exit(0)  # the emulators' threads have nothing to save
