#!/bin/sh
# Records of the COCO kind: a caption and boxes with names beside each picture.
#
# Shows:     a JSONL manifest with image/object/bbox/*; boxes that follow the picture through EXIF
#            and crop; what a record looks like; captions in the report
# Command:   python scripts/make_demo_images.py --output drawn
#            IMAGES=drawn sh recipes/captions_and_boxes.sh
# Hardware:  TO FILL
# Time:      TO FILL
# Result:    TO FILL
# Given again it keeps the shards that are there, and goes on with a training that was stopped.
set -eu
: "${IMAGES:?names the folder that scripts/make_demo_images.py drew}"
OUTPUT=${OUTPUT:-recipe_output/captions_and_boxes}
EPOCHS=${EPOCHS:-1} # more, and nothing is left to be wrong

python -m recipes.captions_and_boxes manifest "$IMAGES" "$OUTPUT/list.jsonl"

# No --columns: the types are found in the first rows, lists become features of variable length.
[ -f "$OUTPUT/shards/manifest.json" ] ||
    python -m beam_pipeline --input "$OUTPUT/list.jsonl" --output "$OUTPUT/shards" --image_size 96 \
        --splits train=0.8,validation=0.2 --num_shards train=4,validation=2

python -m recipes.captions_and_boxes show "$OUTPUT/shards"
python -m recipes.captions_and_boxes check "$OUTPUT/shards"

python -m trainer --data "$OUTPUT/shards" --output "$OUTPUT/model" --model cnn \
    --epochs "$EPOCHS" --batch_size 32 --seed 1

# The report shows the most wrong pictures, each with its file, its caption, its place.
python -m trainer.evaluate --model_path "$OUTPUT/model" --data "$OUTPUT/shards" \
    --report "$OUTPUT/evaluation"
grep -o 'caption: [^<]*' "$OUTPUT/evaluation/index.html" || true
