#!/bin/sh
# One file per category, counts in the manifest, training in steps, as in the Keras tutorial on
# TFRecords.
#
# Shows:     --shard_by class; the manifest's counts; --steps; a reader that mixes such files
# Command:   python scripts/make_demo_images.py --output drawn
#            IMAGES=drawn sh recipes/one_file_per_class.sh
# Hardware:  2 cores of an AMD EPYC, no GPU
# Time:      21 s
# Result:    600 drawn pictures, 2 of them broken on purpose:
#
#     train-00000-of-00003.tfrecord  165 records  {'circle': 165}
#     train-00001-of-00003.tfrecord  159 records  {'square': 159}
#     train-00002-of-00003.tfrecord  161 records  {'triangle': 161}
#     ...
#     5 passes over 485 records in batches of 32 are 75 steps
#     epoch 1/5  loss 0.1573  accuracy 0.9396  val_loss 0.0960  val_accuracy 0.9823  612 images/s
#     epoch 5/5  loss 0.0133  accuracy 0.9958  val_loss 0.0544  val_accuracy 0.9823  609 images/s
#     validation accuracy 0.982
#
# Run again, it keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?names a folder of class folders; scripts/make_demo_images.py draws one}"
OUTPUT=${OUTPUT:-recipe_output/one_file_per_class}
BATCH=${BATCH:-32}
PASSES=${PASSES:-5}

[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$IMAGES" --output "$OUTPUT/shards" --image_size 96 \
        --splits train=0.8,validation=0.2 --shard_by class --num_shards 1

# One line per file, then the number of training records alone.
counts='
import json, sys
splits = json.load(open(sys.argv[1]))["splits"]
for shard in [shard for split in splits.values() for shard in split["shards"]]:
    print("{file}  {num_records} records  {classes}".format(**shard), file=sys.stderr)
print(splits["train"]["num_records"])
'
records=$(python -c "$counts" "$OUTPUT/shards/manifest.json")
steps=$((PASSES * records / BATCH))
echo "$PASSES passes over $records records in batches of $BATCH are $steps steps"

# Every file holds one class, yet every batch is mixed: the reader draws from all files in turn.
# --epochs 5 in place of --steps would be the same number of steps.
imageshards train --data "$OUTPUT/shards" --output "$OUTPUT/model" --model cnn \
    --batch_size "$BATCH" --steps "$steps" --seed 1
