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
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam import pvalue

from beam_pipeline.beam_files import StoreConfig
from beam_pipeline.columns import preprocessing
from beam_pipeline.columns.arrow import REF_COLUMN, arrow_schema, to_record_batches, to_ref_batch
from beam_pipeline.columns.export import LABEL_COLUMNS, export_labels, exported_features
from beam_pipeline.option_texts import invalid
from beam_pipeline.options import BuildOptions, ColumnSpec, ShardOptions
from beam_pipeline.planning.refs import ClassOrder, RefBatch, distinct_labels
from imageshards import storage
from imageshards.commands.command_line import check_installed
from imageshards.errors import Arg
from imageshards.manifest import ONE, FeatureSpec


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
        names = [spec.name for spec in columns]
        for name in names:
            if name in preprocessing.RESERVED_FEATURES or not name:
                received = f"{name!r}, a name every record already has"
                raise invalid("columns", received, remedy="rename the column")
            if names.count(name) > 1:
                raise invalid("columns", f"{name!r} twice", "each column once")
        if columns or transform_module is not None or copied_from:
            check_installed("tensorflow_transform")
        transform_dir = transform_dir and storage.place("transform_dir", transform_dir)
        self._copied_from = copied_from and storage.place("copied_from", copied_from)
        self._columns = tuple(columns)
        plan = options.plan
        self._order = ClassOrder(plan.class_names, plan.pinned_classes)
        self._label = label
        self._raw_columns = (*LABEL_COLUMNS[label], *columns)
        self._module = None
        if transform_module is not None:
            self._module = preprocessing.TransformModule(
                storage.place("transform_module", transform_module)
            )
        temp_dir = temp_dir and storage.place("temp_dir", temp_dir)
        self._temp_dir = temp_dir or transform_dir.rstrip("/") + "-temp"
        self._transform_dir = transform_dir

    def expand(self, batches: beam.PCollection[RefBatch]) -> Analysed:
        stores = StoreConfig.of_pipeline(batches)
        distinct, export = stores.step(distinct_labels), stores.step(_export)
        labels = (
            batches
            | "DistinctLabels" >> beam.FlatMap(distinct, self._order.class_names)  # str
            | "Union" >> beam.CombineGlobally(beam.combiners.ToSetCombineFn())  # one set
        )
        exported, complete = self._copied_from, []
        if self._columns or self._module is not None:
            # TensorFlow may not know the store of the output, so it writes to a folder it knows.
            exported = storage.join(self._temp_dir, f"exported-{uuid.uuid4().hex}")
            batches, written = self._through_tft(batches, exported)
            complete.append(pvalue.AsIter(written))
        features = labels | "ExportLabels" >> beam.Map(
            export, self._order, self._transform_dir, exported, self._label, *complete
        )  # {feature: FeatureSpec}
        return Analysed(batches, features)

    def _through_tft(
        self, batches: beam.PCollection[RefBatch], exported: str
    ) -> tuple[beam.PCollection[RefBatch], beam.PCollection]:
        """Returns the batches with features, and an element when the transform is `exported`."""
        preprocessing.import_tensorflow_transform()
        from tensorflow_transform import beam as tft_beam

        columns = self._raw_columns
        preprocess = preprocessing.Preprocess(self._columns, self._label, self._module)
        to_arrow = StoreConfig.of_pipeline(batches).step(to_record_batches)
        raw = batches | "ToRecordBatches" >> beam.FlatMap(to_arrow, columns)  # pa.RecordBatch
        dataset = (raw, _adapter_config(columns))
        # TFT keeps no link from its rows to images, so the reference passes through as a column.
        with tft_beam.Context(temp_dir=self._temp_dir, passthrough_keys={REF_COLUMN}):
            transform_fn = dataset | "Analyse" >> tft_beam.AnalyzeDataset(preprocess)
            transformed, _ = (dataset, transform_fn) | "Transform" >> tft_beam.TransformDataset(
                output_record_batches=True
            )
            written = (
                transform_fn
                | "WriteTransformFn" >> tft_beam.WriteTransformFn(exported)
                | "WriteRawMetadata"
                >> beam.Map(preprocessing.write_raw_metadata, columns, exported)
            )
        return transformed | "ToRefBatches" >> beam.Map(to_ref_batch), written


@contextlib.contextmanager
def transform_temp_folder(
    options: BuildOptions, columns: Sequence[ColumnSpec], is_local_run: bool, staging: str
) -> Iterator[str]:
    """Yields a folder for the files that tensorflow-transform writes while columns are analysed.

    TensorFlow on every worker reads and writes the folder; "" means the usual one of
    `AnalyseColumns`. Raises `UserError` if the build needs a folder from --transform_temp_dir.
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
        with tempfile.TemporaryDirectory() as folder:
            yield folder
    elif not is_needed or is_read or storage.is_local(staging):
        yield ""
    else:
        raise invalid(
            "output",
            f"{options.output!r}, in a store that TensorFlow does not read",
            "a folder for tensorflow-transform that every worker sees",
            "give one on a shared mount or gs:// by " + Arg("transform_temp_dir"),
        )


def _export(
    labels: set[str],
    order: ClassOrder,
    transform_dir: str,
    exported: str,
    label: str,
    written: Any = None,
) -> dict[str, FeatureSpec]:
    """Exports the transform; `written` is there when `exported` is."""
    return exported_features(export_labels(order.names(labels), transform_dir, exported, label))


def _adapter_config(columns: Sequence[ColumnSpec]) -> Any:
    import tensorflow_transform as tft
    from tfx_bsl.tfxio import tensor_adapter, tensor_representation_util

    schema = tft.DatasetMetadata.from_feature_spec(preprocessing.raw_feature_spec(columns)).schema
    representations = tensor_representation_util.InferTensorRepresentationsFromMixedSchema(schema)
    return tensor_adapter.TensorAdapterConfig(arrow_schema(columns), representations)
