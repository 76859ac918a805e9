#!/bin/sh
# ImageNet in 1,024 + 128 shards, MobileNetV2 and ResNet-50 after NVIDIA's recipe: SGD with
# Nesterov momentum, cosine with warm-up, label smoothing, weight decay without norms, bfloat16.
#
# Shows:     the whole command for ILSVRC 2012 on 8 GPUs (the defaults below; IMAGES holds
#            train/<synset>/*.JPEG and val/<synset>/*.JPEG), and how to shrink it
# Command:   IMAGES=imagenet_sample TRAIN_SHARDS=8 VAL_SHARDS=2 RECORD_SIZE=72 SIZE=64 BATCH=16 \
#                REPLICAS=2 STEPS=6 WARMUP_STEPS=2 PRECISION=float32 sh recipes/imagenet.sh
# Hardware:  2 cores of an AMD EPYC, no GPU
# Time:      4 minutes, other work on both cores meanwhile (2.5 minutes of CPU time)
# Result:    300 pictures, one for each of 300 classes, 6 steps: this shows that the commands run,
#            on 2 replicas. The accuracy means nothing: with one picture per class, the classes
#            of the validation split were never seen. (Nor does ResNet-50's val_loss, with
#            batch statistics of 6 steps.) The defaults, which need the whole dataset and
#            8 GPUs, were never run; bfloat16 was, for 6 steps at SIZE=112.
#
#     MobileNetV2: 2,642,284 parameters, pictures of 64x64x3 px, 2 replicas on CPU, ...
#     epoch 1/1  loss 5.9356  accuracy 0.0104  val_loss 5.7046  val_accuracy 0.0000  29 images/s
#     ResNet50: 24,202,412 parameters, pictures of 64x64x3 px, 2 replicas on CPU, ...
#     epoch 1/1  loss 8.6467  accuracy 0.0104  val_loss 121556.4418  val_accuracy 0.0000  6 images/s
#
# Run again, it keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?names a folder with train/<synset>/ and val/<synset>/, or of <synset>_name.JPEG}"
OUTPUT=${OUTPUT:-recipe_output/imagenet}
TRAIN_SHARDS=${TRAIN_SHARDS:-1024}
VAL_SHARDS=${VAL_SHARDS:-128}
RECORD_SIZE=${RECORD_SIZE:-256} # px in the records; random crops of it become SIZE
SIZE=${SIZE:-224}
BATCH=${BATCH:-2048} # over all GPUs: 256 on each
REPLICAS=${REPLICAS:-8}
EPOCHS=${EPOCHS:-90}
STEPS=${STEPS:-}                   # in all, instead of EPOCHS
WARMUP_STEPS=${WARMUP_STEPS:-5004} # 8 epochs of 1,281,167 / 2048 steps
PRECISION=${PRECISION:-bfloat16}   # float32 on CPUs, most of which are slow with bfloat16
MODELS=${MODELS:-MobileNetV2 ResNet50}

# The sample lies flat, with the class in the name and no split of its own.
if [ -d "$IMAGES/train" ]; then
    set -- --layout split_folders
else
    set -- --label_regex '^(n[0-9]+)_' --splits train=0.9,val=0.1
fi
[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build --input "$IMAGES" "$@" --output "$OUTPUT/shards" \
        --image_size "$RECORD_SIZE" --num_shards "train=$TRAIN_SHARDS,val=$VAL_SHARDS"

for model in $MODELS; do
    # Decay is decoupled here: 2.44e-4 is NVIDIA's 3.05e-5 / (1 - momentum), which is what an L2
    # term comes to in the long run. A small network wants less augmentation, and less decay.
    case $model in
        MobileNet*) set -- --augment light --weight_decay 0.0001 ;;
        *) set -- --augment strong --weight_decay 0.000244 ;;
    esac
    if [ -n "$STEPS" ]; then
        set -- "$@" --steps "$STEPS"
    else
        set -- "$@" --epochs "$EPOCHS"
    fi
    imageshards train --data "$OUTPUT/shards" --output "$OUTPUT/$model" --model "$model" "$@" \
        --batch_size "$BATCH" --replicas "$REPLICAS" --seed 1 --image_size "$SIZE" \
        --optimizer sgd --momentum 0.875 --learning_rate 0.256 --scale_learning_rate \
        --schedule cosine --warmup_steps "$WARMUP_STEPS" --label_smoothing 0.1 \
        --precision "$PRECISION"
    imageshards evaluate --model_path "$OUTPUT/$model" --data "$OUTPUT/shards" --split val \
        --batch_size "$BATCH" --replicas "$REPLICAS"
done
