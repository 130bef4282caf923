"""Content hashes of pages: a page is known by its tokens, all tokens before it, whose they are and what computed them.

Hashes are keyed with a secret of the process: nobody can work out, or make a collision with, the hash of a prompt.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16
_SECRET = secrets.token_bytes(32)


def root_hash(salt: str, *identity: str) -> bytes:
    """Where a chain starts. Chains with different salts never meet, so one tenant cannot probe another's prompts.

    `identity` names all that keys and values depend on besides the tokens: the model and the dtype.
    """
    root = blake2b(digest_size=HASH_BYTES, key=_SECRET, person=b"quarry-prefix")
    for part in (salt, *identity):
        data = part.encode()
        root.update(len(data).to_bytes(8, "little") + data)
    return root.digest()


def page_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full page of tokens that follows the pages hashed into `parent`."""
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=HASH_BYTES, key=_SECRET).digest()
