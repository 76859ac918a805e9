#!/bin/sh
# Trains the small network on Dogs vs. Cats, from a flat folder of photos to a served model.
#
# Shows:     labels in file names; light augmentation; a cosine schedule; evaluate, predict, export
# Command:   IMAGES=dogs_vs_cats sh recipes/dogs_vs_cats.sh
# Hardware:  2 cores of an AMD EPYC, no GPU
# Time:      8.5 minutes with other work on both cores; 3 minutes without
# Result:    1,399 of Kaggle's 25,000 photos, with an earlier version of the trainer. The model
#            classifies 121 of 145 validation photos correctly: an accuracy of 0.83. The uncertainty
#            is 0.06 with so few photos. After 1, 20 and 40 epochs the validation loss is 0.67, 0.46
#            and 0.42. Recall is 0.77 for cats and 0.89 for dogs.
#
# A second run keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?must name a flat folder of cat.N.jpg and dog.N.jpg, as Kaggle names the photos}"
OUTPUT=${OUTPUT:-recipe_output/dogs_vs_cats}
EPOCHS=${EPOCHS:-40}
WARMUP_STEPS=${WARMUP_STEPS:-100}

[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$IMAGES" --output "$OUTPUT/shards" \
        --label_regex '^([a-z]+)\.' --image_size 128 --num_shards train=8,validation=2

imageshards train --data "$OUTPUT/shards" --output "$OUTPUT/model" --model cnn \
    --epochs "$EPOCHS" --batch_size 32 --seed 1 --augment light \
    --optimizer adamw --learning_rate 0.003 --schedule cosine --warmup_steps "$WARMUP_STEPS" \
    --weight_decay 0.05 --label_smoothing 0.1

imageshards evaluate --model_path "$OUTPUT/model" --data "$OUTPUT/shards" \
    --report "$OUTPUT/evaluation"

# `predict` reads original photos. Most of these photos are in the training split, unlike the photos
# of `evaluate`.
imageshards predict --model_path "$OUTPUT/model" "$IMAGES"/cat.?.jpg "$IMAGES"/dog.?.jpg

imageshards export --model_path "$OUTPUT/model" \
    --output "$OUTPUT/exported" --overwrite
