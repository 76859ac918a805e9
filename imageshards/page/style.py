"""The report's style sheet: light and dark, wide and narrow, screen and paper."""

STYLE = """\
:root {
  --paper: #fbfaf8; --card: #ffffff; --ink: #1f2328; --soft: #646b74; --line: #e3e1dc;
  --bar: #2f6f8f; --pale: #a9c8d6; --track: #efeeea; --warn: #9a4a12;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1c2024; --ink: #e6e8ea; --soft: #9aa3ad; --line: #30363c;
    --bar: #63aeca; --pale: #2f5263; --track: #262b30; --warn: #e79a5f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 72rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", "Noto Sans", sans-serif; font-variant-numeric: tabular-nums;
}
h1 { font-size: 2rem; line-height: 1.2; margin: 0; letter-spacing: -0.015em;
  overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 3rem 0 0.75rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.75rem 0 0.5rem; }
p { margin: 0.4rem 0; max-width: 46rem; color: var(--soft); }
code { font: 0.9em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
nav { margin: 1rem 0 0; display: flex; flex-wrap: wrap; gap: 0.25rem 1.1rem; font-size: 0.9rem; }
a { color: var(--bar); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0.75rem;
  margin: 1.5rem 0 0; padding: 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 0.6rem;
  padding: 0.8rem 1rem; }
.tiles dt { color: var(--soft); font-size: 0.85rem; }
.tiles dd { margin: 0; font-size: 1.5rem; font-weight: 600; letter-spacing: -0.01em; }
.tiles small { display: block; font-size: 0.8rem; font-weight: 400; color: var(--soft);
  letter-spacing: 0; }
.wide { overflow-x: auto; margin: 0.75rem 0; }
table { border-collapse: collapse; min-width: min(100%, 32rem); font-size: 0.925rem; }
table.bars { width: 100%; }
caption { text-align: left; color: var(--soft); font-size: 0.875rem; padding-bottom: 0.35rem; }
th, td { padding: 0.35rem 1rem 0.35rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: break-word; }
thead th { color: var(--soft); font-weight: 500; font-size: 0.85rem; white-space: nowrap; }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
td ul { margin: 0; padding: 0; list-style: none; }
.bars td { width: 28%; min-width: 9rem; }
.bars th, .bars td { padding-top: 0.2rem; padding-bottom: 0.2rem; vertical-align: middle; }
.bars tbody th { overflow-wrap: anywhere; min-width: 7rem; }
.bar { display: grid; grid-template-columns: 1fr 4.5em; gap: 0.6rem; align-items: center; }
.bar i { display: block; height: 0.7rem; background: var(--track); border-radius: 0.2rem;
  overflow: hidden; }
.bar i b { display: block; height: 100%; background: var(--bar); }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem),
  1fr)); margin: 0.75rem 0 1.25rem; }
.pairs { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; }
.chart { background: var(--card); border: 1px solid var(--line); border-radius: 0.6rem;
  padding: 0.8rem 1rem; }
.chart figcaption { font-size: 0.9rem; font-weight: 500; margin-bottom: 0.4rem; }
.chart figcaption small { color: var(--soft); font-weight: 400; font-size: 0.85rem;
  display: block; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
svg .bar-full { fill: var(--bar); } svg .bar-pale { fill: var(--pale); }
svg .axis { stroke: var(--line); stroke-width: 1; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); gap: 0.6rem;
  margin: 0.5rem 0 0; padding: 0; list-style: none; }
.sheet img { display: block; width: 100%; height: auto; aspect-ratio: 1; object-fit: contain;
  background: var(--track); border-radius: 0.35rem; }
.sheet span { display: block; font-size: 0.75rem; line-height: 1.3; color: var(--soft);
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; margin-top: 0.2rem; }
.warn { color: var(--warn); }
details { margin: 0.75rem 0; } summary { cursor: pointer; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem;
  font-size: 0.875rem; color: var(--soft); }
@media (min-width: 60rem) { .pairs svg text { font-size: 9px; } }
@media (min-width: 60rem) { .sheet { grid-template-columns: repeat(8, 1fr); } }
@media print { body { max-width: none; padding: 0; } .chart, tr { break-inside: avoid; } }
"""
