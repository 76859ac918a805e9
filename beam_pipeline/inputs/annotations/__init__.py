"""Detection datasets in their own formats: COCO files, YOLO folders and Pascal VOC folders.

`places` tells the formats apart by content and finds the files. `coco` and `beside` read pictures
with boxes, which `references` treats as rows of a table. `refused` names files that are no input.
"""
