#!/bin/sh
# A column as target: three numbers, a whole number, a list of words. One dataset, three models.
#
# Shows:     --target of a float[3] (regression), an int (classes) and a string[] (several labels);
#            --loss; figures that fit the kind
# Command:   IMAGES=dogs_vs_cats sh recipes/targets.sh
# Hardware:  2 cores of an AMD EPYC, no GPU, that others used, too
# Time:      11 min, 2 of them for the shards
# Result:    1,399 of Kaggle's Dogs vs. Cats, 130 to validate: colours are found to 0.036 in 0..1, the
#            right quarter of four by lightness 77 times of 100, and words better than by chance
#
#     epoch 20/20  loss 0.0013 val 0.0011  mae 0.0404 val 0.0364  rmse 0.0514 val
#       0.0459  r2 0.7931 val 0.8038
#     epoch 20/20  loss 0.5760 val 0.5556  acc 0.767 val 0.769
#     epoch 20/20  loss 0.3054 val 0.3550  binary_accuracy 0.8673 val 0.8477  auc_pr
#       0.7627 val 0.6845  f1 0.6195 val 0.5991
#
# Run again, it keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?names a folder of JPEGs: one folder per class, or flat with names like cat.1.jpg}"
OUTPUT=${OUTPUT:-recipe_output/targets}
EPOCHS=${EPOCHS:-20}
WARMUP_STEPS=${WARMUP_STEPS:-40}

python -m recipes.targets --input "$IMAGES" --output "$OUTPUT/list.jsonl"

[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$OUTPUT/list.jsonl" --allow_any_path --output "$OUTPUT/shards" --image_size 96 \
        --columns 'colour:float[3],light:int,words:string[]' --num_shards train=8,validation=2

train() {
    target=$1
    shift
    imageshards train --data "$OUTPUT/shards" --output "$OUTPUT/$target" --target "$target" \
        --epochs "$EPOCHS" --learning_rate 0.01 --schedule cosine --warmup_steps "$WARMUP_STEPS" \
        --batch_size 32 --seed 1 "$@"
}

train colour --loss huber --metrics r2
train light
train words --metrics f1
