"""What a few images come to as records, found out as a build would: in a process of their own."""

from __future__ import annotations

from beam_pipeline.images import encode_image, read_images
from beam_pipeline.images.pool_worker import Watch
from beam_pipeline.images.process_pool import LocalPool, own_pool
from beam_pipeline.options import ImageOptions, UrlOptions
from beam_pipeline.planning.plan import RECORD_OVERHEAD_BYTES
from beam_pipeline.planning.refs import LOST_RECORD, RefBatch
from imageshards.errors import ImageError
from imageshards.tfrecord import FOOTER_BYTES, HEADER_BYTES


def sample_sizes(
    batch: RefBatch, options: ImageOptions, urls: UrlOptions, pool: LocalPool | None
) -> list[int]:
    """Bytes of the records of those images that become one, framing included.

    Files are encoded for it; records are copied: their size is known.
    """
    if not batch.refs:
        return []
    found = (pool or own_pool()).submit("of a sample", _sizes, batch, options, urls)
    sizes: list[int] = found.result()
    return sizes


def _sizes(batch: RefBatch, options: ImageOptions, urls: UrlOptions, watch: Watch) -> list[int]:
    files = read_images([r for r in batch.refs if not r.is_record], options.max_bytes, urls)
    sizes: list[int] = []
    for number, ref in enumerate(batch.refs):
        if ref.is_record:
            if ref.offset_bytes != LOST_RECORD:
                sizes.append(HEADER_BYTES + ref.size_bytes + FOOTER_BYTES)
            continue
        _, data = next(files)
        if isinstance(data, ImageError):
            continue
        try:
            with watch.picture(number):
                sizes.append(len(encode_image(data, options).data) + RECORD_OVERHEAD_BYTES)
        except ImageError:
            continue  # told, and counted, when its shard is written
    return sizes
