"""Salted, stable hashes of keys: every draw and every order of a data set comes from them."""

from __future__ import annotations

import hashlib

# What a hash is for: which split is drawn, the rank within a class, the order of the records in a
# shard, whether a key is unique. The values are part of every data set that was built: another
# one moves every image.
SPLIT, RANK, ORDER, UNIQUE = b"split", b"deal", b"place", b"unique"


class KeyHasher:
    """Salted, stable 128-bit hashes of keys (BLAKE2b, RFC 7693).

    Each purpose has hashes of its own: which split an image is in, which rank it has in its class
    and where its record stands in the shard must tell nothing of each other.

    Args:
        salt: Another one gives other hashes.
        purpose: `SPLIT`, `RANK`, `ORDER` or `UNIQUE`.
    """

    def __init__(self, salt: str, purpose: bytes = RANK):
        key = hashlib.blake2b(salt.encode(), digest_size=32).digest()
        self._empty = hashlib.blake2b(digest_size=16, key=key, person=purpose)

    def __call__(self, text: str) -> bytes:
        state = self._empty.copy()
        state.update(text.encode("utf-8", "surrogatepass"))
        return state.digest()
