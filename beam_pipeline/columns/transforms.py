"""Labels and extra columns through tensorflow-transform.

What is exported, under `transform_dir`, is TFT's own layout; `tft.TFTransformOutput`
opens it. Serving needs neither TFT nor this package:

    transform = tf.saved_model.load("OUT/transform/transform_fn").transform_fn
    transform({"image/class/text": tf.constant(["cat"]), "weight": tf.constant([1.5])})

The one argument is a dict of batched raw columns, named as in `metadata/schema.pbtxt`:
dense `[batch]` or `[batch, k]`, a `tf.SparseTensor` for a variable-length column; the
result is a dict of transformed features. An unknown label becomes -1.

TensorFlow takes seconds to import and is never needed to decide a class order, so it is
imported where a graph is traced or run, and not by this module. With labels only, that
is one element of one stage.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from beam_pipeline.columns.analyzers import UnionFn
from beam_pipeline.columns.arrow import (
    REF_COLUMN,
    ToRecordBatch,
    arrow_schema,
    to_ref_batch,
)
from beam_pipeline.columns.label_transform import (
    LABEL_ID,
    LABEL_VOCABULARY,
    TRANSFORM_FN_DIR,
    TRANSFORMED_METADATA_DIR,
    export_labels,
    write_raw_metadata,
)
from beam_pipeline.columns.preprocessing import (
    RESERVED_FEATURES,
    Preprocess,
    TransformModule,
    raw_feature_spec,
)
from beam_pipeline.imports import import_tensorflow_transform
from beam_pipeline.options import ColumnSpec
from beam_pipeline.planning.classes import class_order, distinct_labels
from beam_pipeline.planning.refs import RefBatch
from imageshards import storage
from imageshards.errors import UserError


class Analysed(NamedTuple):
    """What `AnalyseColumns` returns.

    Attributes:
        batches: The same references; with extra columns or a transform module their
            `columns` are record features: name → list of int, float or bytes.
        written: `transform_dir`, once, when everything is exported.
    """

    batches: beam.PCollection[RefBatch]
    written: beam.PCollection[str]


class AnalyseColumns(beam.PTransform):
    """Computes the label vocabulary and extra features, and exports the transform.

    Without extra columns and module, only the distinct labels are combined, and one
    element exports the graph: the batches themselves pass untouched, waiting for nothing.

    Args:
        columns: Declared extra columns.
        class_names: Given class order; a label outside is an error.
        pinned_classes: Class order of the data set being rebuilt; new labels follow.
        transform_module: A `.py` file or dotted module with `preprocessing_fn(inputs)`.
        temp_dir: For intermediate graphs; every worker must see it.
        transform_dir: Where the transform is exported.

    Raises:
        UserError: A column has a reserved name or is declared twice, or the module is
            unusable; while running: a bad label or value, naming the image's key.
    """

    def __init__(
        self,
        columns: tuple[ColumnSpec, ...],
        class_names: tuple[str, ...] | None,
        pinned_classes: tuple[str, ...],
        transform_module: str | None,
        temp_dir: str,
        transform_dir: str,
    ):
        super().__init__()
        _check_names(columns)
        self._columns = columns
        self._class_names = class_names
        self._pinned = pinned_classes
        self._module = None if transform_module is None else TransformModule(transform_module)
        self._temp_dir = temp_dir
        self._transform_dir = transform_dir

    def expand(self, batches: beam.PCollection[RefBatch]) -> Analysed:
        if not self._columns and self._module is None:
            return self._labels_only(batches)
        return self._through_tft(batches)

    def _labels_only(self, batches: beam.PCollection[RefBatch]) -> Analysed:
        written = (
            batches
            | "DistinctLabels" >> beam.Map(distinct_labels, self._class_names)  # set per batch
            | "Union" >> beam.CombineGlobally(UnionFn())  # one set
            | "ClassOrder" >> beam.Map(class_order, self._class_names, self._pinned)  # one list
            | "ExportLabels" >> beam.Map(export_labels, self._transform_dir)  # transform_dir
        )
        return Analysed(batches, written)

    def _through_tft(self, batches: beam.PCollection[RefBatch]) -> Analysed:
        import_tensorflow_transform()
        from tensorflow_transform import beam as tft_beam

        preprocess = Preprocess(
            self._columns,
            self._class_names,
            self._pinned,
            self._module,
            storage.join(self._temp_dir, f"vocabulary-{uuid.uuid4().hex}"),
        )
        raw = (
            batches
            | "CheckLabels" >> beam.Map(_with_checked_labels, self._class_names)
            | "ToRecordBatches" >> beam.FlatMap(ToRecordBatch(self._columns))  # pa.RecordBatch
        )
        exported = self._transform_dir
        if not storage.is_local(exported):  # TensorFlow may not know the store
            exported = storage.join(self._temp_dir, "exported")
        dataset = (raw, _adapter_config(self._columns))
        with tft_beam.Context(temp_dir=self._temp_dir, passthrough_keys={REF_COLUMN}):
            transform_fn = dataset | "Analyse" >> tft_beam.AnalyzeDataset(preprocess)
            transformed, _ = (dataset, transform_fn) | "Transform" >> tft_beam.TransformDataset(
                output_record_batches=True
            )
            written = (
                transform_fn
                | "WriteTransformFn" >> tft_beam.WriteTransformFn(exported)
                | "WriteRawMetadata"
                >> beam.Map(_then_write_raw_metadata, self._columns, exported, self._transform_dir)
            )
        return Analysed(transformed | "ToRefBatches" >> beam.Map(to_ref_batch), written)


def exported_features(transform_dir: str) -> dict[str, dict[str, Any]]:
    """Extra features as exported: name → `{"dtype": …, "shape": …}` as in the manifest.

    The shape is `None` for a variable length. Read without TensorFlow.
    """
    from google.protobuf import text_format
    from tensorflow_metadata.proto.v0 import schema_pb2

    path = storage.join(transform_dir, TRANSFORMED_METADATA_DIR, "schema.pbtxt")
    schema = text_format.Parse(storage.read(path).decode(), schema_pb2.Schema())
    dtypes = {schema_pb2.INT: "int64", schema_pb2.FLOAT: "float32", schema_pb2.BYTES: "string"}
    features = {}
    for feature in sorted(schema.feature, key=lambda feature: feature.name):
        if feature.name != LABEL_ID:
            fixed = feature.HasField("shape")
            shape = [dim.size for dim in feature.shape.dim] if fixed else None
            features[feature.name] = {"dtype": dtypes[feature.type], "shape": shape}
    return features


def exported_classes(transform_dir: str) -> list[str]:
    """Class names by class id, as exported. Read without TensorFlow."""
    path = storage.join(transform_dir, TRANSFORM_FN_DIR, "assets", LABEL_VOCABULARY)
    return storage.read(path).decode().split("\n")[:-1]


def _check_names(columns: Sequence[ColumnSpec]) -> None:
    names = [spec.name for spec in columns]
    for name in names:
        if name in RESERVED_FEATURES or not name:
            raise UserError(
                f"--columns received {name!r}, a name every record already has; rename the column."
            )
        if names.count(name) > 1:
            raise UserError(f"--columns received {name!r} twice; expected each column once.")


def _with_checked_labels(batch: RefBatch, class_names: Sequence[str] | None) -> RefBatch:
    distinct_labels(batch, class_names)
    return batch


def _adapter_config(columns: Sequence[ColumnSpec]) -> Any:
    import tensorflow_transform as tft
    from tfx_bsl.tfxio import tensor_adapter, tensor_representation_util

    schema = tft.DatasetMetadata.from_feature_spec(raw_feature_spec(columns)).schema
    representations = tensor_representation_util.InferTensorRepresentationsFromMixedSchema(schema)
    return tensor_adapter.TensorAdapterConfig(arrow_schema(columns), representations)


def _then_write_raw_metadata(
    _: None, columns: Sequence[ColumnSpec], exported: str, transform_dir: str
) -> str:
    write_raw_metadata(raw_feature_spec(columns), exported)
    if exported != transform_dir:
        storage.copy_folder(exported, transform_dir)
    return transform_dir
