#!/bin/sh
# Few photos: a network trained on cats and dogs, fine-tuned on 33 drawn pictures of three shapes.
#
# Shows:     --weights of an earlier run; the same training with and without these weights
# Command:   python scripts/make_demo_images.py --output drawn
#            IMAGES=dogs_vs_cats FEW=drawn sh recipes/few_photos.sh
# Hardware:  2 cores of an AMD EPYC, no GPU, with other work on them
# Time:      7 minutes, of which 4 for cats and dogs
# Result:    With the weights, the loss on 565 validation pictures falls from 0.12 to 0.05, and errors from 2.2 %
#            to 1.1 %. The table lists the best epoch of each run:
#
#     seed  without: accuracy  loss    with: accuracy  loss
#     1                 0.965  0.173           0.991  0.034
#     2                 0.991  0.085           0.988  0.063
#     3                 0.979  0.112           0.988  0.040
#
#            Weights do not always help: for dogs among 119 animals of ImageNet, 45 to train on, the
#            mean accuracy was 0.74 without and 0.70 with the weights of this small network.
#
# Run again, it keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?names a flat folder of cat.N.jpg and dog.N.jpg, as Kaggle has them}"
: "${FEW:?names a folder with a few photos in a folder for each class}"
OUTPUT=${OUTPUT:-recipe_output/few_photos}
EPOCHS=${EPOCHS:-40}
FEW_EPOCHS=${FEW_EPOCHS:-15}
SEEDS=${SEEDS:-1 2 3}
WARMUP_STEPS=${WARMUP_STEPS:-100}

[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$IMAGES" --output "$OUTPUT/shards" --label_regex '^([a-z]+)\.' \
        --image_size 128 --num_shards train=8,validation=2
# A twentieth of the pictures trains, so that many pictures measure the result.
[ -f "$OUTPUT/few/manifest.json" ] ||
    imageshards build --input "$FEW" --output "$OUTPUT/few" --image_size 128 \
        --splits train=0.05,validation=0.95 --num_shards train=1,validation=2

train() {
    data=$1
    run=$2
    shift 2
    imageshards train --data "$OUTPUT/$data" --output "$OUTPUT/$run" --model cnn --augment light \
        --optimizer adamw --schedule cosine --weight_decay 0.05 --label_smoothing 0.1 "$@"
}

train shards large --epochs "$EPOCHS" --batch_size 32 --learning_rate 0.003 \
    --warmup_steps "$WARMUP_STEPS" --seed 1
for seed in $SEEDS; do
    train few "without_$seed" --epochs "$FEW_EPOCHS" --batch_size 16 --learning_rate 0.003 \
        --warmup_steps 5 --seed "$seed"
    # A third of the rate: the layers keep most of what they learned from cats and dogs.
    train few "with_$seed" --epochs "$FEW_EPOCHS" --batch_size 16 --learning_rate 0.001 \
        --warmup_steps 5 --seed "$seed" --weights "$OUTPUT/large/model.keras"
done
