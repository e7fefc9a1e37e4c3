"""The page's style sheet.  Colours: Okabe and Ito's, which colour-blind readers can tell apart."""

CSS = """
:root {
  --paper: #fbfbf9; --card: #ffffff; --ink: #1b1f24; --muted: #5d6670; --line: #e3e5e8;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #aa5a92;
  --finished: #9dbcd4; --truncated: #8a929b; --migrated: #e69f00; --deferred: #a4458a;
  --stopped: #009e73; --lost: #c1121f; --open: #c9ced4; --good: #0b7a5b; --bad: #c1121f;
  --restarted: #6a4c93;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1b1f25; --ink: #e7eaee; --muted: #9aa4af; --line: #2e343c;
    --c0: #56b4e9; --c1: #f08a3c; --c2: #2fc297; --c3: #d89ac4;
    --finished: #4a6f8c; --truncated: #7b848e; --migrated: #e6a817; --deferred: #d07ab5;
    --stopped: #2fc297; --lost: #ff6b6b; --open: #4b535c; --good: #4fd1a5; --bad: #ff6b6b;
    --restarted: #a98be0;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1140px; margin: 0 auto; padding: 48px 28px 80px; }
header { border-bottom: 1px solid var(--line); padding-bottom: 20px; }
.kicker { margin: 0; color: var(--muted); font-size: 14px; letter-spacing: .02em; }
.tier { display: inline-block; margin-left: 10px; padding: 1px 10px; border-radius: 10px;
  background: var(--c1); color: var(--paper); }
h1 { margin: 4px 0 6px; font-size: 34px; line-height: 1.15; letter-spacing: -.02em; }
h2 { margin: 0 0 12px; font-size: 21px; letter-spacing: -.01em; }
h3 { margin: 22px 0 4px; font-size: 16px; }
section { margin-top: 44px; }
section > p { max-width: 78ch; color: var(--muted); margin: 0 0 14px; }
.sub { margin: 0; color: var(--muted); }
.legend { display: flex; flex-wrap: wrap; gap: 6px 20px; list-style: none; padding: 0;
  margin: 14px 0 0; font-size: 14px; }
.legend li { display: flex; align-items: center; gap: 8px; }
.swatch { width: 30px; height: 10px; }
.chip { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 8px; }
.chip.c0 { background: var(--c0); } .chip.c1 { background: var(--c1); }
.chip.c2 { background: var(--c2); } .chip.c3 { background: var(--c3); }
.key { width: 22px; height: 10px; border-radius: 2px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
th, td { padding: 7px 16px; text-align: left; vertical-align: top; }
thead th { font-weight: 600; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 400; }
.figures td, .figures thead th:not(:first-child) { text-align: right; }
.figures thead th { white-space: normal; vertical-align: bottom; }
.figures th[scope=row] { min-width: 13em; }
.figures:has(thead th:nth-child(10)) { font-size: 13.5px; }
.figures:has(thead th:nth-child(10)) :is(th, td) { padding: 5px 7px; }
.figures:has(thead th:nth-child(10)) th[scope=row] { min-width: 0; }
.figures td, .num { font-variant-numeric: tabular-nums; white-space: nowrap; }
.num { text-align: right; }
.compact :is(th, td) { padding: 5px 10px; white-space: nowrap; }
.part th { padding-left: 38px; color: var(--muted); }
.part + .part > *, .figures tr.part > * { border-top: 0; padding-top: 2px; padding-bottom: 2px; }
.unit, .none { color: var(--muted); }
.delta { display: inline-block; min-width: 74px; color: var(--muted); font-size: 13px; }
.good { color: var(--good); font-weight: 600; } .bad { color: var(--bad); font-weight: 700; }
.caveat { border-left: 3px solid var(--c1); padding: 2px 0 2px 20px; }
.caveat p:last-child { margin-bottom: 0; }
.grid2 > :only-child { max-width: 560px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 18px; }
figure { margin: 0; padding: 16px 16px 8px; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; }
figure.wide { margin-top: 16px; }
figcaption { display: flex; flex-direction: column; margin: 0 4px 8px; font-size: 15px; }
figcaption span { color: var(--muted); font-size: 13.5px; }
figure svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit; fill: var(--muted); font-size: 12px; }
svg .label { font-size: 12.5px; } svg .note { font-size: 11.5px; fill: var(--ink);
  paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--muted); stroke-width: 1; }
.limit { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); }
.line.c2 { stroke: var(--c2); } .line.c3 { stroke: var(--c3); }
.line.bound { stroke: var(--muted); stroke-width: 1.4; }
.dot { stroke: var(--card); stroke-width: 1.2; }
.dot.c0 { fill: var(--c0); } .dot.c1 { fill: var(--c1); }
.dot.bound { fill: var(--muted); stroke: none; r: 1.6px; }
.dot.c2 { fill: var(--c2); } .dot.c3 { fill: var(--c3); }
.area { fill-opacity: .16; stroke-width: 1.6; stroke-linejoin: round; }
.area.c0 { fill: var(--c0); stroke: var(--c0); } .area.c1 { fill: var(--c1); stroke: var(--c1); }
.area.c2 { fill: var(--c2); stroke: var(--c2); } .area.c3 { fill: var(--c3); stroke: var(--c3); }
.band { fill-opacity: .15; stroke: none; }
.band.c0 { fill: var(--c0); } .band.c1 { fill: var(--c1); }
.band.c2 { fill: var(--c2); } .band.c3 { fill: var(--c3); }
.interval { fill: var(--c0); fill-opacity: .45; }
.line.whisker { stroke-width: 1.2; stroke-opacity: .7; }
.checklist td:last-child { min-width: 380px; } .checklist .unit { white-space: nowrap; }
.verdict { border-left: 3px solid var(--c2); padding: 2px 0 2px 20px; font-weight: 600; }
section > p.verdict { color: var(--ink); }
.finished { fill: var(--finished); background: var(--finished); }
.truncated { fill: var(--truncated); background: var(--truncated); }
.migrated { fill: var(--migrated); background: var(--migrated); }
.deferred { fill: var(--deferred); background: var(--deferred); }
.stopped { fill: var(--stopped); background: var(--stopped); }
:is(.lost, .expired) { fill: var(--lost); background: var(--lost); }
.restarted { fill: var(--restarted); background: var(--restarted); }
.interrupted { fill: var(--migrated); background: var(--migrated); }
.open { fill: var(--open); background: var(--open); }
.mark { stroke: var(--card); stroke-width: .8; }
.decisions td:last-child { min-width: 320px; color: var(--muted); }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""
