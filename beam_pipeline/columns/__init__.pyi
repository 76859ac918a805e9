from .export import exported_classes, exported_features
from .transforms import TFT_TEMP, AnalyseColumns, Analysed, transform_temp_folder

__all__ = [
    "TFT_TEMP",
    "AnalyseColumns",
    "Analysed",
    "exported_classes",
    "exported_features",
    "transform_temp_folder",
]
