"""Raw JPEGs in, balanced and reproducible TFRecord shards out, as an Apache Beam job."""
