from .duplicate_keys import FindDuplicateKeys, RefuseDuplicateKeys
from .layout import check_output_apart
from .listing import schema_of
from .manifest import ManifestSchema
from .transforms import Listed, ListImages

__all__ = [
    "FindDuplicateKeys",
    "ListImages",
    "Listed",
    "ManifestSchema",
    "RefuseDuplicateKeys",
    "check_output_apart",
    "schema_of",
]
