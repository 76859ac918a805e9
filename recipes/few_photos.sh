#!/bin/sh
# Few photos: a network trained on one dataset, fine-tuned on a second one of 45 photos.
#
# Shows:     --weights of an earlier run; a table as input; the same training with and without weights
# Command:   IMAGES=dogs_vs_cats FEW=imagenet_sample sh recipes/few_photos.sh
set -eu
: "${IMAGES:?names a flat folder of cat.N.jpg and dog.N.jpg, as Kaggle has them}"
: "${FEW:?names a flat folder of ImageNet photos called nNNNNNNNN_NAME.JPEG}"
OUTPUT=${OUTPUT:-recipe_output/few_photos}
EPOCHS=${EPOCHS:-40}
SEEDS=${SEEDS:-1 2 3}
WARMUP_STEPS=${WARMUP_STEPS:-20}

mkdir -p "$OUTPUT"
# WordNet numbers its nouns in groups: 2,085,620 to 2,113,978 are ImageNet's dogs, and all numbers up to
# 2,655,020 are ImageNet's animals.
find "$(cd "$FEW" && pwd)" -name 'n*.JPEG' | sort | awk -F/ '
    BEGIN { print "path,label" }
    {
        number = substr($NF, 2, 8) + 0
        gsub(/"/, "\"\"")
        if (number <= 2655020) print "\"" $0 "\"," (number >= 2085620 && number <= 2113978 ? "dog" : "other")
    }' >"$OUTPUT/few.csv"

[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$IMAGES" --output "$OUTPUT/shards" --label_regex '^([a-z]+)\.' \
        --image_size 128 --num_shards train=8,validation=2
[ -f "$OUTPUT/few/manifest.json" ] ||
    imageshards build --input "$OUTPUT/few.csv" --allow_any_path --output "$OUTPUT/few" --image_size 128 \
        --splits train=0.5,validation=0.5 --num_shards train=1,validation=1

train() {
    data=$1
    run=$2
    shift 2
    imageshards train --data "$OUTPUT/$data" --output "$OUTPUT/$run" --model cnn --epochs "$EPOCHS" \
        --augment light --optimizer adamw --schedule cosine --warmup_steps "$WARMUP_STEPS" \
        --weight_decay 0.05 --label_smoothing 0.1 --metrics auc "$@"
}

train shards large --batch_size 32 --learning_rate 0.003 --seed 1
for seed in $SEEDS; do
    train few "without_$seed" --batch_size 16 --learning_rate 0.003 --seed "$seed"
    # A third of the rate: the layers keep most of what they learned from cats and dogs.
    train few "with_$seed" --batch_size 16 --learning_rate 0.001 --seed "$seed" \
        --weights "$OUTPUT/large/model.keras"
done
