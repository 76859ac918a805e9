from .duplicate_keys import RefuseDuplicateKeys
from .layout import check_output_apart
from .listing import schema_of
from .manifest import ManifestSchema
from .transforms import Listed, ListImages

__all__ = [
    "ListImages",
    "Listed",
    "ManifestSchema",
    "RefuseDuplicateKeys",
    "check_output_apart",
    "schema_of",
]
