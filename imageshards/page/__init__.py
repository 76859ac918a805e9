"""One report kit for both programs: pages from templates, bar and line charts, contact sheets.

`style.css` and the templates `base.jinja` (the page around the sections) and `kit.jinja`
(tables, tiles, charts) lie beside this file. jinja2 and Pillow are loaded when something is
drawn.
"""

from imageshards.page.charts import BarChart, LineChart, histogram, line_chart, strip
from imageshards.page.page import Meter, Rows, number, percent, render, share, size
from imageshards.page.sheets import contact_sheet, data_uri, thumbnail

__all__ = [
    "BarChart",
    "LineChart",
    "Meter",
    "Rows",
    "contact_sheet",
    "data_uri",
    "histogram",
    "line_chart",
    "number",
    "percent",
    "render",
    "share",
    "size",
    "strip",
    "thumbnail",
]
