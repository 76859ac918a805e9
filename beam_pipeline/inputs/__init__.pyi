from .data_sets import of_replaced, open_inputs, reads_output
from .duplicate_keys import FindDuplicateKeys, RefuseDuplicateKeys
from .image_table import TableSchema
from .layout import check_output_apart
from .listing import schema_of, schemas_of
from .selection import KeysFile, Selected, SelectImages, share_keys
from .transforms import Listed, ListImages

__all__ = [
    "FindDuplicateKeys",
    "KeysFile",
    "ListImages",
    "Listed",
    "TableSchema",
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
