"""Makes a dataset of existing TFRecords, by adding a manifest and an index to them."""
