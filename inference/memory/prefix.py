"""Content hashes of pages: a page is known by its tokens and all tokens before it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16


def root_hash(salt: str) -> bytes:
    """Where a chain starts. Chains with different salts never meet, so one tenant cannot probe another's prompts."""
    return blake2b(salt.encode(), digest_size=HASH_BYTES, person=b"quarry-prefix").digest()


def page_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full page of tokens that follows the pages hashed into `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=HASH_BYTES).digest()
