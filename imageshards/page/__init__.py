"""Draws the report pages of both programs: templates, charts of lines and points, thumbnails.

Beside this file lie `style.css` and the templates `base.jinja` (the page around the sections) and
`kit.jinja` (tables, tiles, charts).
"""

from imageshards.page.charts import Chart as Chart
from imageshards.page.charts import line_chart as line_chart
from imageshards.page.charts import scatter_chart as scatter_chart
from imageshards.page.page import Meter as Meter
from imageshards.page.page import Rows as Rows
from imageshards.page.page import data_uri as data_uri
from imageshards.page.page import draw_boxes as draw_boxes
from imageshards.page.page import number as number
from imageshards.page.page import percent as percent
from imageshards.page.page import record_boxes as record_boxes
from imageshards.page.page import render as render
from imageshards.page.page import share as share
from imageshards.page.page import size as size
from imageshards.page.page import thumbnail as thumbnail
