"""A pipeline of one's own that writes a shard for each address: `python -m … OUTPUT ADDRESS …`."""

import sys

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

import beam_pipeline as bp
from beam_pipeline.images import process_pool


def main(output: str, *addresses: str) -> None:
    process_pool._pools.append(process_pool.LocalPool(len(addresses)))  # on any machine
    plan = bp.PlanOptions(num_shards={"train": len(addresses)})
    options = bp.ShardOptions(plan=plan, urls=bp.UrlOptions(allow_private_hosts=True))
    refs = [bp.ImageRef(uri, uri, f"class {i}", "train") for i, uri in enumerate(addresses)]
    with beam.Pipeline("FnApiRunner", options=PipelineOptions([])) as pipeline:
        planned = pipeline | beam.Create(refs) | bp.BatchRefs() | bp.PlanShards(options)
        planned.units | bp.WriteBalancedTFRecord(f"{output}/", options)


if __name__ == "__main__":
    main(*sys.argv[1:])
