"""What a few pictures come to as records, found out as a build would: in a process of their own."""

from __future__ import annotations

from typing import Any

from beam_pipeline.images.pool_worker import Watch
from beam_pipeline.images.process_pool import LocalPool, own_pool
from beam_pipeline.images.read import read_images
from beam_pipeline.options import ImageOptions, UrlOptions
from imageshards.errors import ImageError
from imageshards.images.encode import encode_image


def encoded_sizes(
    files: Any, options: ImageOptions, urls: UrlOptions, pool: LocalPool | None
) -> list[int]:
    """Bytes of the pictures of `files.refs`, as records hold them; of those that become one."""
    found = (pool or own_pool()).submit("of a sample", _sizes, files, options, urls)
    sizes: list[int] = found.result()
    return sizes


def _sizes(files: Any, options: ImageOptions, urls: UrlOptions, watch: Watch) -> list[int]:
    sizes: list[int] = []
    for number, (_, data) in enumerate(read_images(files.refs, options.max_bytes, urls)):
        if isinstance(data, ImageError):
            continue
        try:
            with watch.picture(number):
                sizes.append(len(encode_image(data, options).data))
        except ImageError:
            continue  # told, and counted, when its shard is written
    return sizes
