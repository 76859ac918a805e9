#!/bin/sh
# Builds records as in COCO: each image has a caption and boxes with class names.
#
# Shows:     a JSONL image table with image/object/bbox/*; boxes that follow the image through EXIF
#            orientation and crop; the features of a record
# Command:   python scripts/make_demo_images.py --output drawn
#            IMAGES=drawn sh recipes/captions_and_boxes.sh
# Hardware:  2 cores of an AMD EPYC, no GPU
# Time:      18 s
# Result:    600 drawn images, some of them stored sideways:
#
#     caption                   ['a triangle in a box of 12 % of the picture']
#     image/encoded             ['1532 bytes']
#     image/filename            ['drawn/triangle/triangle_größer_é_0002.JPG']
#     image/object/bbox/xmax    [0.8865247964859009]
#     image/object/bbox/xmin    [0.347517728805542]
#     image/object/bbox/ymax    [0.08510635793209076]
#     image/object/bbox/ymin    [0.0]
#     image/object/class/text   ['triangle']
#     ... and eight more features
#     241 boxes reach the edge of the crop; overlap of the other 353 with their shapes: mean
#     0.966, least 0.897
#     validation accuracy 0.978
#
# A second run keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?must name the output folder of scripts/make_demo_images.py}"
OUTPUT=${OUTPUT:-recipe_output/captions_and_boxes}
EPOCHS=${EPOCHS:-1}

python -m recipes.captions_and_boxes table "$IMAGES" "$OUTPUT/list.jsonl"

# Without --columns the builder infers the types from the first rows. Lists become features of
# variable length.
[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$OUTPUT/list.jsonl" --allow_any_path --output "$OUTPUT/shards" --image_size 96 \
        --splits train=0.8,validation=0.2 --num_shards train=4,validation=2

python -m recipes.captions_and_boxes show "$OUTPUT/shards"
python -m recipes.captions_and_boxes check "$OUTPUT/shards"

imageshards train --data "$OUTPUT/shards" --output "$OUTPUT/model" --model cnn \
    --epochs "$EPOCHS" --batch_size 32 --seed 1
