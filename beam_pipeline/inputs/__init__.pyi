from .duplicate_keys import RefuseDuplicateKeys
from .listing import schema_of
from .manifest import ManifestSchema
from .transforms import Listed, ListImages

__all__ = ["ListImages", "Listed", "ManifestSchema", "RefuseDuplicateKeys", "schema_of"]
