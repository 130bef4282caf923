"""GGUF files read by the `gguf` library, with its array reading made fast.

The library turns every element of a metadata array into NumPy views: a tokenizer of 150,000 tokens and as many merges
takes half a minute. Here an array is one part (numbers) or one `bytes` each (strings), which takes half a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGUFValueType

_MERGED_ROWS = 4


class GGUFFileError(ValueError):
    """The file is no readable GGUF file. The message names it."""


class _Reader(gguf.GGUFReader):
    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY or self.byte_order == "S":
            return super()._get_field_parts(orig_offs, raw_type)
        item = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        head: list[Any] = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
        start = orig_offs + 12
        types = [GGUFValueType.ARRAY, item]
        if item == GGUFValueType.STRING:
            strings, end = self._strings(start, count)
            return end - orig_offs, [*head, *strings], list(range(2, 2 + count)), types
        if item not in self.gguf_scalar_to_np:
            return super()._get_field_parts(orig_offs, raw_type)
        values = self._get(start, self.gguf_scalar_to_np[item], count)
        return 12 + values.nbytes, [*head, values], [2], types

    def _strings(self, start: int, count: int) -> tuple[list[npt.NDArray[np.uint8]], int]:
        """`count` strings, each preceded by its length in 8 bytes -> their bytes, and where the last one ends."""
        raw = np.asarray(self.data)
        view = raw.data
        strings, offset = [], start
        for _ in range(count):
            begin = offset + 8
            offset = begin + int.from_bytes(view[offset:begin], "little")
            if offset > len(view):
                raise ValueError("a string reaches beyond the end of the file")
            strings.append(raw[begin:offset])
        return strings, offset


def open_gguf(path: Path) -> gguf.GGUFReader:
    """The file's fields and tensors; tensors stay on disk until they are read. Raises GGUFFileError."""
    try:
        return _Reader(path)
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise GGUFFileError(f"{path}: not a readable GGUF file ({error}); download it again") from error


def dequantize(tensor: gguf.ReaderTensor) -> npt.NDArray[np.float32]:
    """A tensor's values in fp32, flat. Raises NotImplementedError for a storage type that the library cannot read.

    The library works on 16 rows at a time; merged rows keep its inner loop long and its temporaries in the cache.
    """
    data = np.asarray(tensor.data)
    if data.dtype == np.uint8 and data.ndim == 2 and data.shape[0] % _MERGED_ROWS == 0:
        data = data.reshape(data.shape[0] // _MERGED_ROWS, -1)
    return gguf.quants.dequantize(data, tensor.tensor_type).astype(np.float32, copy=False).reshape(-1)
