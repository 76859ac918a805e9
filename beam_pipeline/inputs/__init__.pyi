from .data_sets import of_replaced, open_inputs, reads_output
from .duplicate_keys import FindDuplicateKeys, RefuseDuplicateKeys
from .layout import check_output_apart
from .listing import schema_of, schemas_of
from .manifest import ManifestSchema
from .transforms import Listed, ListImages

__all__ = [
    "FindDuplicateKeys",
    "ListImages",
    "Listed",
    "ManifestSchema",
    "RefuseDuplicateKeys",
    "check_output_apart",
    "of_replaced",
    "open_inputs",
    "reads_output",
    "schema_of",
    "schemas_of",
]
