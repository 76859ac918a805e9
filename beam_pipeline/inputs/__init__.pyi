from .data_sets import of_replaced, open_inputs, reads_output
from .duplicate_keys import FindDuplicateKeys, RefuseDuplicateKeys
from .layout import check_output_apart
from .listing import schema_of, schemas_of
from .manifest import ManifestSchema
from .selection import KeysFile, Selected, SelectImages, share_keys
from .transforms import Listed, ListImages

__all__ = [
    "FindDuplicateKeys",
    "KeysFile",
    "ListImages",
    "Listed",
    "ManifestSchema",
    "RefuseDuplicateKeys",
    "SelectImages",
    "Selected",
    "check_output_apart",
    "of_replaced",
    "open_inputs",
    "reads_output",
    "schema_of",
    "schemas_of",
    "share_keys",
]
