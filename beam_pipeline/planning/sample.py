"""What a few images come to as records, found out as a build would: in a process of their own."""

from __future__ import annotations

import time
from typing import NamedTuple

from beam_pipeline.images import encode_image, process_pool, read_images
from beam_pipeline.images.pool_worker import Watch
from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.planning.plan import RECORD_OVERHEAD_BYTES
from beam_pipeline.planning.refs import LOST_RECORD, RefBatch
from imageshards.errors import ImageError
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES


class EncodedSample(NamedTuple):
    """What became of some images.

    Attributes:
        found: Of each, in order, the bytes of its record, framing included, or why it cannot
            become one.
        cpu_sec: What that took.
    """

    found: list[int | ImageError]
    cpu_sec: float


def encode_sample(batch: RefBatch, options: ImageOptions, urls: UrlOptions) -> EncodedSample:
    """Encodes files; records are copied: their size is known."""
    if not batch.refs:
        return EncodedSample([], 0.0)
    pool = process_pool.current()
    encoded: EncodedSample = pool.submit("of a sample", _encode, batch, options, urls).result()
    return encoded


def _encode(
    batch: RefBatch, options: ImageOptions, urls: UrlOptions, watch: Watch
) -> EncodedSample:
    begun = time.process_time()
    files = read_images([r for r in batch.refs if not r.is_record], options.max_bytes, urls)
    found: list[int | ImageError] = []
    for number, ref in enumerate(batch.refs):
        if ref.offset_bytes == LOST_RECORD:
            found.append(ImageError("damaged_record", "the shard holds no such record"))
        elif ref.is_record:
            found.append(HEADER_BYTES + ref.size_bytes + FOOTER_BYTES)
        else:
            _, data = next(files)
            try:
                if isinstance(data, ImageError):
                    raise data
                with watch.picture(number):
                    found.append(len(encode_image(data, options).data) + RECORD_OVERHEAD_BYTES)
            except ImageError as e:
                found.append(e.with_traceback(None))
    return EncodedSample(found, time.process_time() - begun)
