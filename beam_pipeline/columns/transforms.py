"""Analyses labels and extra columns by tensorflow-transform (TFT), and exports the transform.

The exported folder has TFT's own layout, so `tft.TFTransformOutput` opens it. Serving needs neither
TFT nor this package:

    transform = tf.saved_model.load("OUT/transform/transform_fn").transform_fn
    transform({"image/class/text": tf.constant(["cat"]), "weight": tf.constant([1.5])})

The argument is a dict of batched raw columns with the names in `metadata/schema.pbtxt`: dense
`[batch]` or `[batch, k]`, or a `tf.SparseTensor` for a column of variable length. The result is a
dict of transformed features. An unknown label becomes -1.

TensorFlow takes seconds to import, so this module does not import it: only a process that traces or
runs a graph does. Without extra columns no process does (see `export`).
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.columns.arrow import REF_COLUMN, arrow_schema, to_record_batches, to_ref_batch
from beam_pipeline.columns.export import LABEL_COLUMNS, export_labels, exported_features
from beam_pipeline.columns.preprocessing import (
    RESERVED_FEATURES,
    Preprocess,
    TransformModule,
    check_installed,
    import_tensorflow_transform,
    raw_feature_spec,
    write_raw_metadata,
)
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import BuildOptions, ColumnSpec, ShardOptions
from beam_pipeline.planning.classes import ClassOrder, distinct_labels
from beam_pipeline.planning.refs import RefBatch
from imageshards import storage
from imageshards.errors import Arg
from imageshards.manifest import ONE, FeatureSpec
from imageshards.progress import note_activity

TFT_TEMP = "tft_temp"


class Analysed(NamedTuple):
    """Outputs of `AnalyseColumns`.

    Attributes:
        batches: The same references. With extra columns or a transform module, their `columns` are
            features of the record: name → list of int, float or bytes.
        features: One dict of the extra features, as in the manifest. The element appears when the
            transform has been exported.
    """

    batches: beam.PCollection[RefBatch]
    features: beam.PCollection[dict[str, FeatureSpec]]


class AnalyseColumns(beam.PTransform):
    """`RefBatch`es → `RefBatch`es with features in place of raw columns; exports the transform.

        source = InputOptions("rows.csv")
        columns = schema_of(source).columns
        analysed = batches | AnalyseColumns("out/transform", columns, options)
        planned = analysed.batches | PlanShards(options, features=analysed.features)

    Without extra columns and module, Beam combines only the distinct labels, and one element
    exports the graph. The batches pass unchanged and wait for nothing.

    Args:
        transform_dir: Folder to which the transform is exported.
        columns: Extra columns of the references; `schema_of(source).columns` of an image table.
        options: Options of the pipeline; `plan` has the order of classes.
        label: How many labels an image has: `one`, `none` or `several`.
        transform_module: A `.py` file or dotted module with `preprocessing_fn(inputs)`.
        temp_dir: Folder for intermediate graphs, which every worker must see and which stays;
            default: `transform_dir` with `-temp` behind its name.
        copied_from: Folder of the exported transform that made the extra columns of copied
            records. The transform is exported again, with the labels of this build.

    Raises:
        UserError: A column has a reserved name or is declared twice, the module is unusable, or
            tensorflow-transform is not installed. While running: a label or value is wrong; names
            the key of the image.
    """

    def __init__(
        self,
        transform_dir: str,
        columns: Sequence[ColumnSpec] = (),
        options: ShardOptions = ShardOptions(),  # noqa: B008  # frozen
        *,
        label: str = ONE,
        transform_module: str | None = None,
        temp_dir: str = "",
        copied_from: str = "",
    ):
        super().__init__()
        _check_names(columns)
        if columns or transform_module is not None or copied_from:
            check_installed()
        transform_dir = transform_dir and storage.place("transform_dir", transform_dir)
        self._copied_from = copied_from and storage.place("copied_from", copied_from)
        self._columns = tuple(columns)
        plan = options.plan
        self._order = ClassOrder(plan.class_names, plan.pinned_classes)
        self._label = label
        self._raw_columns = (*LABEL_COLUMNS[label], *columns)
        self._module = None
        if transform_module is not None:
            self._module = TransformModule(storage.place("transform_module", transform_module))
        temp_dir = temp_dir and storage.place("temp_dir", temp_dir)
        self._temp_dir = temp_dir or transform_dir.rstrip("/") + "-temp"
        self._transform_dir = transform_dir

    def expand(self, batches: beam.PCollection[RefBatch]) -> Analysed:
        if self._columns or self._module is not None:
            return self._through_tft(batches)
        stores = StoreConfig.of_pipeline(batches)
        distinct, export = stores.step(distinct_labels), stores.step(_export)
        folders = self._transform_dir, self._copied_from
        features = (
            batches
            | "DistinctLabels" >> beam.FlatMap(distinct, self._order.class_names)  # str
            | "Union" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())  # one set
            | "ExportLabels" >> beam.Map(export, self._order, *folders, self._label)
        )  # {feature: FeatureSpec}
        return Analysed(batches, features)

    def _through_tft(self, batches: beam.PCollection[RefBatch]) -> Analysed:
        import_tensorflow_transform()
        from tensorflow_transform import beam as tft_beam

        columns = self._raw_columns
        preprocess = Preprocess(
            self._columns,
            self._order,
            self._label,
            self._module,
            storage.join(self._temp_dir, f"vocabulary-{uuid.uuid4().hex}"),
        )
        stores = StoreConfig.of_pipeline(batches)
        check = stores.step(_with_checked_labels)
        write = stores.step(_then_write_raw_metadata)
        raw = (
            batches
            | "CheckLabels" >> beam.Map(check, self._order.class_names)  # RefBatch
            | "ToRecordBatches" >> beam.FlatMap(to_record_batches, columns)  # pa.RecordBatch
        )
        exported = self._transform_dir
        # TensorFlow may not know the store, so it writes to a folder that it knows.
        if not storage.is_local(exported):
            exported = storage.join(self._temp_dir, "exported")
        dataset = (raw, _adapter_config(columns))
        # TFT keeps no link from its rows to images, so the reference passes through as a column.
        with tft_beam.Context(temp_dir=self._temp_dir, passthrough_keys={REF_COLUMN}):
            transform_fn = dataset | "Analyse" >> tft_beam.AnalyzeDataset(preprocess)
            transformed, _ = (dataset, transform_fn) | "Transform" >> tft_beam.TransformDataset(
                output_record_batches=True
            )
            features = (
                transform_fn
                | "WriteTransformFn" >> tft_beam.WriteTransformFn(exported)
                | "WriteRawMetadata" >> beam.Map(write, columns, exported, self._transform_dir)
            )
        return Analysed(transformed | "ToRefBatches" >> beam.Map(to_ref_batch), features)


@contextlib.contextmanager
def transform_temp_folder(
    options: BuildOptions, columns: Sequence[ColumnSpec], is_local_run: bool, staging: str
) -> Iterator[str]:
    """Yields a folder for the files that tensorflow-transform writes while columns are analysed.

    TensorFlow on every worker reads and writes the folder. Without extra columns it stays unused.

    Raises:
        UserError: The build needs a folder from --transform_temp_dir.
    """
    is_needed = bool(columns) or options.transform_module is not None
    # gs:// is the only store that TensorFlow reads, and its client ignores emulators.
    is_read = staging.startswith("gs://") and not os.environ.get("STORAGE_EMULATOR_HOST")
    if options.transform_temp_dir is not None:
        folder = storage.join(options.transform_temp_dir, f"imageshards-{uuid.uuid4().hex[:8]}")
        try:
            yield folder
        finally:
            storage.delete_folder(folder)
    elif is_needed and is_local_run and not storage.is_local(staging):
        with storage.temporary_folder() as folder:
            yield folder
    elif not is_needed or is_read or storage.is_local(staging):
        yield storage.join(staging, TFT_TEMP)
    else:
        raise invalid(
            "output",
            f"{options.output!r}, in a store that TensorFlow does not read",
            "a folder for tensorflow-transform that every worker sees",
            "give one on a shared mount or gs:// by " + Arg("transform_temp_dir"),
        )


def _check_names(columns: Sequence[ColumnSpec]) -> None:
    names = [spec.name for spec in columns]
    for name in names:
        if name in RESERVED_FEATURES or not name:
            received = f"{name!r}, a name every record already has"
            raise invalid("columns", received, remedy="rename the column")
        if names.count(name) > 1:
            raise invalid("columns", f"{name!r} twice", "each column once")


def _export(
    labels: set[str], order: ClassOrder, transform_dir: str, copied_from: str, label: str
) -> dict[str, FeatureSpec]:
    return exported_features(export_labels(order.names(labels), transform_dir, copied_from, label))


def _with_checked_labels(batch: RefBatch, class_names: Sequence[str] | None) -> RefBatch:
    distinct_labels(batch, class_names)
    note_activity("analysing columns", len(batch.refs), "row")
    return batch


def _adapter_config(columns: Sequence[ColumnSpec]) -> Any:
    import tensorflow_transform as tft
    from tfx_bsl.tfxio import tensor_adapter, tensor_representation_util

    schema = tft.DatasetMetadata.from_feature_spec(raw_feature_spec(columns)).schema
    representations = tensor_representation_util.InferTensorRepresentationsFromMixedSchema(schema)
    return tensor_adapter.TensorAdapterConfig(arrow_schema(columns), representations)


def _then_write_raw_metadata(
    _: None, columns: Sequence[ColumnSpec], exported: str, transform_dir: str
) -> dict[str, FeatureSpec]:
    write_raw_metadata(raw_feature_spec(columns), exported)
    if exported != transform_dir:
        storage.copy_folder(exported, transform_dir)
    return exported_features(transform_dir)
