// The look of the tab, in Airflow's light and dark mode: Airflow marks its root element with the class "dark".

const STYLE = `
.edl { --text:#1b2027; --quiet:#596270; --panel:#fff; --line:#dde1e6; --grid:#e9ecef; --soft:#f3f5f8; --accent:#0b62d0;
  --good:#1a7f4b; --wait:#8a5d00; --bad:#c22b32; --bad-soft:#fdf0f0; --wait-soft:#fff7e3;
  --c0:#2a6fd6; --c1:#0f8a72; --c2:#b3570b; --c3:#8250c4; --c4:#b42f72; --c5:#6b7480;
  color:var(--text); font-size:14px; line-height:1.5; padding:12px 12px 32px; height:100%; overflow:auto; box-sizing:border-box; }
.dark .edl { --text:#e4e8ed; --quiet:#9aa4b0; --panel:#1b2131; --line:#333c50; --grid:#2a3245; --soft:#222a3b; --accent:#6cabff;
  --good:#4cc38a; --wait:#dcab3d; --bad:#ff7f80; --bad-soft:#2c1a1d; --wait-soft:#2a2416;
  --c0:#6cabff; --c1:#3fc1a3; --c2:#e8954a; --c3:#b794f0; --c4:#f07fb3; --c5:#98a2ae; }
.edl *, .edl *::before { box-sizing:border-box; }
.edl h2, .edl h3, .edl p, .edl dl, .edl dd, .edl figure { margin:0; }
.edl h2 { font-size:18px; font-weight:600; line-height:1.3; overflow-wrap:anywhere; }
.edl h3 { font-size:14px; font-weight:600; margin-bottom:8px; }
.edl a { color:var(--accent); } .edl a:hover { text-decoration:underline; }
.edl :focus-visible { outline:2px solid var(--accent); outline-offset:2px; border-radius:4px; }
.edl .quiet { color:var(--quiet); }
.edl article + article { margin-top:28px; padding-top:24px; border-top:1px solid var(--line); }
.edl header { display:flex; flex-wrap:wrap; align-items:center; gap:4px 12px; margin-bottom:10px; }
.edl header .end { margin-inline-start:auto; display:flex; gap:16px; color:var(--quiet); font-size:13px; }
.edl .chip { display:inline-flex; align-items:center; gap:6px; border:1px solid var(--line); border-radius:99px; padding:1px 10px;
  font-size:13px; font-weight:500; white-space:nowrap; background:var(--panel); }
.edl .chip::before { content:""; width:8px; height:8px; border-radius:50%; background:currentColor; }
.edl .good { color:var(--good); } .edl .wait { color:var(--wait); } .edl .bad { color:var(--bad); } .edl .busy { color:var(--accent); }
.edl .note { border:1px solid var(--line); border-radius:8px; padding:8px 12px; margin-bottom:12px; background:var(--soft); overflow-wrap:anywhere; }
.edl .note.bad { background:var(--bad-soft); } .edl .note.wait { background:var(--wait-soft); color:var(--text); }
.edl .progress { margin-bottom:14px; }
.edl .progress .words { display:flex; flex-wrap:wrap; justify-content:space-between; gap:0 16px; margin-bottom:4px; }
.edl .bar { height:8px; border-radius:4px; background:var(--grid); overflow:hidden; display:flex; gap:1px; }
.edl .bar span { height:100%; min-width:0; }
.edl .figures { display:grid; grid-template-columns:repeat(auto-fit,minmax(132px,1fr)); border:1px solid var(--line); border-radius:8px;
  background:var(--panel); overflow:hidden; margin-bottom:14px; }
.edl .figures div { padding:8px 12px; margin:0 -1px -1px 0; border:solid var(--line); border-width:0 1px 1px 0; }
.edl dt { color:var(--quiet); font-size:12px; } .edl .figures dd { font-size:18px; font-weight:600; font-variant-numeric:tabular-nums; line-height:1.35; overflow-wrap:anywhere; }
.edl .figures small { display:inline-block; font-size:12px; font-weight:400; color:var(--quiet); }
.edl .grid2 { display:flex; flex-wrap:wrap; gap:14px; margin-bottom:14px; }
.edl .grid2 > * { flex:1 1 min(100%,380px); }
.edl .panel { border:1px solid var(--line); border-radius:8px; background:var(--panel); padding:12px; min-width:0; }
.edl .panel.wide { margin-bottom:14px; } .edl .panel.ask { border-color:var(--wait); background:var(--wait-soft); }
.edl .scroll { overflow:auto; max-height:300px; margin:0 -12px -12px; padding:0 12px 12px; }
.edl .scroll + .actions { margin-top:22px; }
.edl .tail { display:flex; flex-direction:column-reverse; }
.edl table { width:100%; border-collapse:collapse; font-size:13px; }
.edl th { text-align:start; font-weight:500; color:var(--quiet); font-size:12px; position:sticky; top:0; background:var(--panel); padding:2px 12px 4px 0; }
.edl td { border-top:1px solid var(--grid); padding:5px 12px 5px 0; vertical-align:top; overflow-wrap:anywhere; }
.edl td.nowrap, .edl .nowrap { white-space:nowrap; font-variant-numeric:tabular-nums; }
.edl .spent { margin-top:8px; } .edl .spent td { padding-inline-end:16px; }
.edl .spent td:first-child, .edl .spent td:nth-child(n+3) { width:1%; }
.edl .spent td:nth-child(n+3) { text-align:end; } .edl .spent td:last-child { padding-inline-end:0; }
.edl .counts { display:flex; flex-wrap:wrap; gap:6px; margin-bottom:8px; }
.edl .counts span { background:var(--soft); border-radius:4px; padding:1px 8px; font-size:13px; }
.edl .actions { display:flex; flex-wrap:wrap; align-items:center; gap:8px; margin-top:10px; }
.edl button { border:1px solid var(--line); border-radius:6px; padding:3px 12px; background:var(--panel); color:var(--text); font-weight:500; cursor:pointer; }
.edl button:hover:not(:disabled) { border-color:var(--quiet); } .edl button:disabled { opacity:.5; cursor:default; }
.edl button.main { background:var(--accent); border-color:var(--accent); color:#fff; } .dark .edl button.main { color:#0b1220; }
.edl button.small { padding:0 8px; font-size:12px; }
.edl pre { margin:0; font:12px/1.5 ui-monospace,"SFMono-Regular","DejaVu Sans Mono",monospace; white-space:pre-wrap; overflow-wrap:anywhere; }
.edl ul { margin:0; padding-inline-start:18px; list-style:disc; }
.edl figcaption { display:flex; flex-wrap:wrap; gap:0 14px; font-size:13px; align-items:center; min-height:22px; }
.edl .key { display:inline-flex; align-items:center; gap:5px; font-variant-numeric:tabular-nums; color:var(--quiet); }
.edl figcaption .time { margin-inline-start:auto; color:var(--quiet); font-variant-numeric:tabular-nums; }
.edl-chart svg { display:block; overflow:visible; } .edl-chart figcaption svg { display:inline; }
.edl-chart text { font-size:11px; fill:var(--quiet); }
.edl-chart .grid { stroke:var(--grid); } .edl-chart .axis { stroke:var(--line); }
.edl-chart .line { fill:none; stroke-width:1.8; stroke-linejoin:round; } .edl-chart .mark { stroke:var(--bad); stroke-width:1.5; }
.edl-chart .cursor { stroke:var(--quiet); }
${[0, 1, 2, 3, 4, 5].map((index) => `.edl-chart .line.s${index} { stroke:var(--c${index}); } .edl-chart .dot.s${index} { fill:var(--c${index}); } .edl .bg${index} { background:var(--c${index}); }`).join("\n")}
`;

/** Put the style sheet into the page, once. */
export function addStyle() {
  if (document.getElementById("edl-style")) return;
  const element = document.createElement("style");
  element.id = "edl-style";
  element.textContent = STYLE;
  document.head.append(element);
}
