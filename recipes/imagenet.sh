#!/bin/sh
# Builds ImageNet in 1,024 + 128 shards, and trains MobileNetV2 and ResNet-50 with NVIDIA's recipe.
# The recipe uses random crops of 8 to 100 % of the area and flips, SGD with Nesterov momentum, a
# cosine schedule with warm-up, label smoothing, weight decay (but not for norms) and bfloat16.
#
# Shows:     the whole command for ILSVRC 2012 on 8 GPUs (the defaults below; IMAGES holds
#            ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar as downloaded, and Kaggle's
#            LOC_val_solution.csv), and how to shrink it
# Command:   IMAGES=imagenet_sample TRAIN_SHARDS=8 VAL_SHARDS=2 RECORD_SIZE=72 SIZE=64 BATCH=16 \
#                REPLICAS=2 STEPS=6 WARMUP_STEPS=2 PRECISION=float32 sh recipes/imagenet.sh
# Hardware:  2 cores of an AMD EPYC, no GPU
# Time:      2.6 minutes with other work on both cores (1.8 minutes of CPU time)
# Result:    300 images, one for each of 300 classes, and 6 steps: the run shows that the commands
#            work on 2 replicas. The accuracy means nothing: with one image per class, the model
#            never sees the classes of the validation split. ResNet-50's val_loss means nothing
#            either, because its batch statistics come from 6 steps. Nobody has run the
#            defaults, which need the whole dataset and 8 GPUs. bfloat16 ran for 6 steps at
#            SIZE=112.
#
#     MobileNetV2: 2,642,284 parameters, pictures of 64x64x3 px, 2 replicas on CPU, ...
#     epoch 1/1  loss 5.9416 val 5.7046  acc 0.000 val 0.000  51 img/s  wait 1%
#     ResNet50: 24,202,412 parameters, pictures of 64x64x3 px, 2 replicas on CPU, ...
#     epoch 1/1  loss 8.3216 val 2405660.5960  acc 0.000 val 0.000  12 img/s  wait 0%
#
# A second run keeps existing shards and resumes an interrupted training.
set -eu
: "${IMAGES:?must name a folder with the two official tars, or with <synset>_name.JPEG}"
LABELS=${LABELS:-$IMAGES/LOC_val_solution.csv} # classes of the validation images
OUTPUT=${OUTPUT:-recipe_output/imagenet}
TRAIN_SHARDS=${TRAIN_SHARDS:-1024}
VAL_SHARDS=${VAL_SHARDS:-128}
RECORD_SIZE=${RECORD_SIZE:-256} # px of the images in the records; random crops are resized to SIZE
SIZE=${SIZE:-224}
BATCH=${BATCH:-2048} # global batch of all GPUs: 256 images on each GPU
REPLICAS=${REPLICAS:-8}
EPOCHS=${EPOCHS:-90}
STEPS=${STEPS:-}                   # total number of steps, instead of EPOCHS
WARMUP_STEPS=${WARMUP_STEPS:-5004} # 8 epochs of 1,281,167 / 2048 steps
PRECISION=${PRECISION:-bfloat16}   # use float32 on CPUs: most CPUs are slow with bfloat16
MODELS=${MODELS:-MobileNetV2 ResNet50}

# The names of the tars give the splits. The sample is a flat folder: file names contain the class,
# and the splits are drawn at random.
if [ -f "$IMAGES/ILSVRC2012_img_train.tar" ]; then
    set -- --input "$IMAGES/ILSVRC2012_img_train.tar" --input "$IMAGES/ILSVRC2012_img_val.tar" \
        --labels "$LABELS"
else
    set -- --input "$IMAGES" --label_regex '^(n[0-9]+)_' --splits train=0.9,val=0.1
fi
[ -f "$OUTPUT/shards/manifest.json" ] ||
    imageshards build "$@" --output "$OUTPUT/shards" \
        --image_size "$RECORD_SIZE" --num_shards "train=$TRAIN_SHARDS,val=$VAL_SHARDS"

for model in $MODELS; do
    # The trainer's weight decay is decoupled. In the long run NVIDIA's L2 term of 3.05e-5 has the
    # effect of a decoupled decay of 3.05e-5 / (1 - momentum) = 2.44e-4. A small network needs less
    # decay.
    case $model in
        MobileNet*) set -- --weight_decay 0.0001 ;;
        *) set -- --weight_decay 0.000244 ;;
    esac
    if [ -n "$STEPS" ]; then
        set -- "$@" --steps "$STEPS"
    else
        set -- "$@" --epochs "$EPOCHS"
    fi
    imageshards train --data "$OUTPUT/shards" --output "$OUTPUT/$model" --model "$model" "$@" \
        --batch_size "$BATCH" --replicas "$REPLICAS" --seed 1 --image_size "$SIZE" \
        --augment light --crop 0.08,1 \
        --optimizer sgd --momentum 0.875 --learning_rate 0.256 --scale_learning_rate \
        --schedule cosine --warmup_steps "$WARMUP_STEPS" --label_smoothing 0.1 \
        --precision "$PRECISION"
    imageshards evaluate --model_path "$OUTPUT/$model" --data "$OUTPUT/shards" --split val \
        --batch_size "$BATCH" --replicas "$REPLICAS"
done
