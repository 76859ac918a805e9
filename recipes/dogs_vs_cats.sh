#!/bin/sh
# Dogs vs. Cats with the small network: from a flat folder of photos to a served model.
#
# Shows:     labels in file names; light augmentation; a cosine schedule; evaluate, predict, export
# Command:   IMAGES=dogs_vs_cats sh recipes/dogs_vs_cats.sh
# Hardware:  TO FILL
# Time:      TO FILL
# Result:    TO FILL
# Given again it keeps the shards that are there, and goes on with a training that was stopped.
set -eu
: "${IMAGES:?names a flat folder of cat.N.jpg and dog.N.jpg, as Kaggle has them}"
OUTPUT=${OUTPUT:-recipe_output/dogs_vs_cats}
EPOCHS=${EPOCHS:-40}

[ -f "$OUTPUT/shards/manifest.json" ] ||
    python -m beam_pipeline --input "$IMAGES" --output "$OUTPUT/shards" \
        --label_regex '^([a-z]+)\.' --image_size 128 --num_shards train=8,validation=2

python -m trainer --data "$OUTPUT/shards" --output "$OUTPUT/model" --model cnn \
    --epochs "$EPOCHS" --batch_size 32 --seed 1 --augment light \
    --optimizer adamw --learning_rate 0.003 --schedule cosine --warmup_steps 100 \
    --weight_decay 0.05 --label_smoothing 0.1

python -m trainer.evaluate --model_path "$OUTPUT/model" --data "$OUTPUT/shards" \
    --report "$OUTPUT/evaluation"

# Photos as they came from the camera; most of them were trained on, unlike those above.
python -m trainer.predict --model_path "$OUTPUT/model" "$IMAGES"/cat.?.jpg "$IMAGES"/dog.?.jpg

python -m trainer.export --model_path "$OUTPUT/model" --format saved_model \
    --output "$OUTPUT/exported" --overwrite
