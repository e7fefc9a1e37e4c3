"use strict";
// Shows the gateway's state, asked for once a second.  Whatever comes from there is set as text,
// never as markup.
const EVERY_MS = 1000, PATIENCE_MS = 4000, REMEMBER_S = 300, COLOURS = 8;
// not relative: the page's own address may hold a password, which fetch refuses
const ADDRESS = `${location.origin}${location.pathname.replace(/\/+$/, "")}/state`;
const KEPT = "steersman-token";
const STATES = {
  enforcing: "Enforcing", shadow: "Shadow: decides, does not act",
  fail_open: "Fail open: the default rule acts", off: "Off: the default rule acts",
};
const $ = id => document.getElementById(id);
const number = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const history = [];
let token = takeToken(), latest = null, answered_ms = 0, frozen = false, timer = 0;

// Asking

function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEPT, given);
    window.history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEPT) || "";
}

async function ask() {
  clearTimeout(timer);
  const patience = new AbortController();
  const late = setTimeout(() => patience.abort(), PATIENCE_MS);
  try {
    const headers = token ? {Authorization: `Bearer ${token}`} : {};
    const answer = await fetch(ADDRESS, {headers, cache: "no-store", signal: patience.signal});
    if (answer.status === 401 || answer.status === 403) return logIn();
    if (!answer.ok) throw new Error(`it answers with status ${answer.status}`);
    const state = await answer.json();
    answered_ms = Date.now();
    remember(state);
    latest = state;
    if (!frozen) show(state);
    complain("");
  } catch (error) {
    const since = latest ? `Below is its state of ${clock(latest.unix_s)}.` : "";
    const why = /status/.test(error.message) ? error.message : "it does not answer";
    complain(`The gateway cannot be seen: ${why}. ${since}`);
  } finally {
    clearTimeout(late);
  }
  timer = setTimeout(ask, EVERY_MS);
}

function logIn() {
  $("wrong").hidden = !token;
  $("login").hidden = false;
  $("main").hidden = true;
  complain("");
  $("token").focus();
}

$("login").addEventListener("submit", event => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem(KEPT, token);
  $("token").value = "";
  $("login").hidden = true;
  ask();
});

function complain(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
  document.body.classList.toggle("stale", Boolean(text));
}

function freeze(on) {
  frozen = on;
  $("freeze").setAttribute("aria-pressed", String(on));
  $("freeze").textContent = on ? "Go on" : "Pause view";
  if (!on && latest) show(latest);
}
$("freeze").addEventListener("click", () => freeze(!frozen));
document.addEventListener("keydown", event => {
  if (event.key === "p" && event.target.tagName !== "INPUT") freeze(!frozen);
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
setInterval(() => {
  if (!answered_ms) return;
  const age = Math.round((Date.now() - answered_ms) / 1000);
  $("fresh").textContent = frozen ? "view paused" : age < 2 ? "live" : `${age} s ago`;
}, 500);

function remember(state) {
  const f = state.figures;
  if (history.length && state.now_s < history.at(-1).now_s) history.length = 0;  // restarted
  history.push({
    now_s: state.now_s, unix_s: state.unix_s, inflight: inflight(state), rate: f.tokens_per_s,
    bubble: f.bubble, tail: f.tail_s, kv: f.kv_most, degenerate: f.degenerate_share,
  });
  while (history[0].unix_s < state.unix_s - REMEMBER_S) history.shift();
}

// Words

const inflight = state => state.phases.running + state.phases.leaving;
const percent = share => `${Math.round(100 * share)}`;
const clock = unix_s => new Date(unix_s * 1000).toLocaleTimeString([], {hour12: false});
const colour = i => `var(--r${((i % COLOURS) + COLOURS) % COLOURS})`;

function seconds(s) {
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  const whole = Math.round(s);
  if (s < 7200) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}

function brief(s) {  // for narrow columns
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  return s < 7200 ? `${(s / 60).toFixed(s < 600 ? 1 : 0)} min` : `${(s / 3600).toFixed(1)} h`;
}

function compact(n) {
  if (n < 10000) return [number.format(n), ""];
  return n < 1e6 ? [(n / 1e3).toFixed(1), "k"] : [(n / 1e6).toFixed(2), "M"];
}

// Drawing

function element(name, css = "", text = "") {
  const made = document.createElement(name);
  if (css) made.className = css;
  if (text !== "") made.textContent = text;
  return made;
}

function place(bar, from, to) {
  bar.style.left = `${100 * from}%`;
  bar.style.width = `${100 * Math.max(to - from, 0)}%`;
}

// One row per item, kept as long as its item is there, so that a row under the pointer stays.
function rows(box, items, key, make, update) {
  const old = box.kept || new Map(), kept = new Map();
  items.forEach((item, i) => {
    const row = old.get(key(item)) || make();
    update(row, item, i);
    kept.set(key(item), row);
  });
  box.kept = kept;
  const wanted = [...kept.values()];
  if (wanted.length !== box.children.length || wanted.some((row, i) => box.children[i] !== row)) {
    const top = box.scrollTop;
    box.replaceChildren(...wanted);
    box.scrollTop = top;
  }
}

function show(state) {
  $("login").hidden = true;
  $("main").hidden = $("freeze").hidden = false;
  const at = new Map(state.replicas.map((replica, i) => [replica.name, i]));
  showTrainer(state);
  showTiles(state);
  showReplicas(state);
  showTrajectories(state, at);
  showWhy(state, at);
  showSums(state);
  document.title = `Steersman: ${inflight(state)} running`;
}

function showTrainer(state) {
  const {decider} = state;
  $("decider").hidden = false;
  $("decider").className = `pill ${decider.state}`;
  $("decider").textContent = STATES[decider.state] || decider.state;
  $("decider").title = `${decider.why}; for ${seconds(state.now_s - decider.since_s)}`;
  $("paused").hidden = !state.paused;
  $("draining").hidden = !state.draining;
  const facts = [["step", state.step < 0 ? "none yet" : state.step], ["weights", `v${state.weight_version}`],
    ["waits for", state.objective === "barrier" ? "the whole step" : "the next groups"]];
  if (state.step >= 0) facts.splice(1, 0, ["for", seconds(state.step_s)]);
  $("trainer").replaceChildren(...facts.map(([name, value]) => {
    const fact = element("div");
    fact.append(element("dt", "", name), element("dd", "", String(value)));
    return fact;
  }));
}

function showTiles(state) {
  const f = state.figures, p = state.phases, alive = state.replicas.filter(r => r.alive).length;
  const idle = Math.round(f.bubble * alive);
  const waits = [[p.queued, "waiting"], [p.parked, "parked"]].filter(([n]) => n).map(([n, w]) => `${number.format(n)} ${w}`);
  const [rate, unit] = f.tokens_per_s === null ? ["–", ""] : compact(f.tokens_per_s);
  const tail = f.tail_s === null ? ["–", ""] : brief(f.tail_s).split(" ");
  const tiles = [
    ["inflight", "In flight", number.format(inflight(state)), "", waits.join(" · ") || "nothing waits", null],
    ["rate", "Tokens per second", rate, unit, "", null],
    ["bubble", "Bubble", percent(f.bubble), "%", `${idle} of ${alive} engines idle`, 1],
    ["tail", "Tail", tail[0], tail[1], f.ends_in_s === null ? "no end predicted" : `all done in ${brief(f.ends_in_s)}`, null],
    ["kv", "KV cache, fullest", percent(f.kv_most), "%", `mean ${percent(f.kv_mean)} %`, 1],
    ["degenerate", "Degenerate groups", f.degenerate_share === null ? "–" : percent(f.degenerate_share),
      f.degenerate_share === null ? "" : "%", f.groups_rewarded ? `of ${number.format(f.groups_rewarded)} rewarded` : "no rewards told", 1],
  ];
  rows($("tiles"), tiles, tile => tile[0], makeTile, (row, [field, label, value, unit_, sub, top]) => {
    const [name, big, small, svg] = row.children;
    name.textContent = label;
    big.firstChild.textContent = value;
    big.lastChild.textContent = unit_;
    small.textContent = small.title = sub;
    row.classList.toggle("bad", field === "kv" && f.kv_most > 0.92);
    spark(svg, field, top);
  });
}

function makeTile() {
  const tile = element("div", "tile"), value = element("div", "value");
  value.append("", element("small"));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const line = document.createElementNS(svg.namespaceURI, "path");
  line.setAttribute("class", "spark");
  svg.append(line);
  tile.append(element("div", "label"), value, element("div", "sub"), svg);
  return tile;
}

function spark(svg, field, top) {
  const known = history.filter(point => point[field] !== null);
  const highest = top || Math.max(1e-9, ...known.map(point => point[field]));
  const end = history.at(-1).unix_s, span = Math.max(end - history[0].unix_s, 30);
  const x = point => 100 * (1 - (end - point.unix_s) / span), y = point => 28 - 25 * Math.min(point[field] / highest, 1);
  const line = known.map(point => `${x(point).toFixed(2)} ${y(point).toFixed(2)}`).join("L");
  svg.firstChild.setAttribute("d", known.length < 2 ? "" : `M${x(known[0]).toFixed(2)} 32L${line}L101 ${y(known.at(-1)).toFixed(2)}L101 32Z`);
  svg.setAttribute("aria-label", `${field}, the last ${seconds(span)}`);
}

function showReplicas(state) {
  const alive = state.replicas.filter(replica => replica.alive).length;
  const slots = percent(state.figures.slots_taken);
  $("engines-note").textContent = `${alive} of ${state.replicas.length} alive · ${slots} % of the slots taken`;
  rows($("replicas"), state.replicas, replica => replica.name, makeReplica, (row, r, i) => {
    const [name, slots_, kv, rate, speed, version, end] = row.children;
    row.style.setProperty("--own", colour(i));
    row.classList.toggle("dead", !r.alive);
    row.title = `${r.name} at ${r.url}\n${r.inflight} trajectories of this gateway; by its own report ${r.running} running, ` +
      `${r.waiting} waiting, ${r.preemptions} preempted so far (${r.report_age_s.toFixed(1)} s ago)`;
    name.children[1].textContent = r.name;
    const tag = !r.alive ? "lost" : r.paused ? "paused" : r.pool === "bulk" ? "" : r.pool;
    name.children[2].textContent = tag;
    name.children[2].hidden = !tag;
    const whole = Math.max(r.slots, r.running + r.waiting, 1);
    const [batch, queue] = slots_.firstChild.children;
    place(batch, 0, r.running / whole);
    place(queue, r.running / whole, (r.running + r.waiting) / whole);
    slots_.lastChild.textContent = r.waiting ? `${r.running} + ${r.waiting}` : `${r.running} / ${r.slots}`;
    place(kv.firstChild.firstChild, 0, r.kv_usage);
    kv.lastChild.textContent = `${percent(r.kv_usage)} %`;
    kv.classList.toggle("full", r.kv_usage > 0.92);
    rate.textContent = r.tokens_per_s === null || !r.alive ? "–" : number.format(r.tokens_per_s);
    speed.textContent = r.iteration_s === null || !r.speed_known ? "–" : (1000 * r.iteration_s).toFixed(1);
    version.textContent = `v${r.weight_version}`;
    end.textContent = r.ends_in_s === null ? r.alive && !r.inflight ? "idle" : "–" : brief(r.ends_in_s);
  });
}

function makeReplica() {
  const row = element("div", "grid replica"), name = element("span", "name");
  name.append(element("i", "dot"), element("b"), element("span", "tag"));
  const slots = element("div", "gauge"), kv = element("div", "gauge kv");
  const bar = element("div", "bar"), kvBar = element("div", "bar");
  bar.append(element("i"), element("i", "queue"));
  kvBar.append(element("i"));
  slots.append(bar, element("span"));
  kv.append(kvBar, element("span"));
  row.append(name, slots, kv, ...Array.from({length: 4}, () => element("span", "num")));
  return row;
}

// The axis holds what is likely left of the last one, and some of what is less likely.
function axisOf(state) {
  const {trajectories: all, now_s} = state;
  const likely = Math.max(1, ...all.map(t => t.ends_in_s || 0));
  const future = Math.min(2.2 * likely, Math.max(1.05 * likely, ...all.map(t => t.ends_in_upper_s || 0)));
  const past = Math.min(0.55 * future, Math.max(0.1 * future, ...all.map(t => now_s - t.since_s)));
  const span = past + future;
  return {past, future, span, now: past / span, at: s => (s + past) / span};
}

function showTicks(axis) {
  const rough = axis.span / 7, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  const ticks = [element("span", "now", "now")];
  ticks[0].style.left = `${100 * axis.now}%`;
  for (let n = Math.ceil(-axis.past / step); n * step < axis.future * 0.97; n++) {
    if (!n || axis.at(n * step) < 0.02) continue;
    const tick = element("span", "", `${n > 0 ? "+" : "−"}${brief(Math.abs(n * step)).replace(".0 s", " s")}`);
    tick.style.left = `${100 * axis.at(n * step)}%`;
    ticks.push(tick);
  }
  $("ticks").replaceChildren(...ticks);
}

function showTrajectories(state, at) {
  const axis = axisOf(state), left = state.trajectories_left_out;
  showTicks(axis);
  $("shown-note").textContent = left ? `and ${number.format(left)} more` : "";
  $("trajectories").style.setProperty("--now", `${100 * axis.now}%`);
  if (!state.trajectories.length) {
    $("trajectories").kept = new Map();
    $("trajectories").replaceChildren(element("p", "nothing", "Nothing is asked of the fleet."));
    return;
  }
  rows($("trajectories"), state.trajectories, t => t.trajectory_id, makeSample,
    (row, t, i) => showSample(row, t, i, axis, at, state.now_s));
}

function showSample(row, t, i, axis, at, now_s) {
  const [who, lane, tokens] = row.children, [done, half, rest, wait, moved] = lane.children;
  const since = now_s - t.since_s, waits = t.phase === "queued", known = t.ends_in_s !== null;
  row.style.setProperty("--own", colour(at.get(t.target || t.replica) ?? 0));
  row.classList.toggle("first", i === 0 && known);
  row.title = about(t, since);
  who.children[0].textContent = t.trajectory_id;
  who.children[1].textContent = waits ? `waits · ${t.prompt_id}` : `${t.target || t.replica} · ${t.prompt_id}`;
  for (const part of [done, half, rest, moved]) part.hidden = waits;
  wait.hidden = !waits;
  const begun = Math.max(-since, -axis.past);
  done.classList.toggle("clipped", since > axis.past);
  place(waits ? wait : done, axis.at(begun), axis.now);
  half.hidden = rest.hidden = waits || !known;
  if (known) {
    place(half, axis.now, Math.min(axis.at(t.ends_in_s), 1));
    place(rest, Math.min(axis.at(t.ends_in_s), 1), Math.min(axis.at(t.ends_in_upper_s), 1));
    rest.classList.toggle("beyond", axis.at(t.ends_in_upper_s) > 1);
  }
  moved.hidden = waits || !t.moves || axis.now < 0.06;
  moved.style.left = `${100 * axis.now}%`;
  moved.textContent = t.moves > 1 ? `↷${t.moves}` : "↷";
  tokens.firstChild.textContent = number.format(t.generated_tokens);
  tokens.lastChild.textContent = t.remaining_tokens === null ? "" : ` + ~${number.format(t.remaining_tokens)}`;
}

function about(t, since) {
  const where = t.target ? `leaves ${t.replica} for ${t.target}` : t.replica ? `on ${t.replica}` : "waits for an engine";
  const lines = [
    `trajectory ${t.trajectory_id} of ${t.prompt_id} (group ${t.group_id}), ${where} for ${seconds(since)}`,
    t.request_id ? `request ${t.request_id}` : "",
    `${number.format(t.prompt_tokens)} prompt tokens, ${number.format(t.generated_tokens)} written, at most ${number.format(t.max_new_tokens)}`,
    t.ends_in_s === null ? "" : `ends in ${seconds(t.ends_in_s)}, in 9 of 10 cases within ${seconds(t.ends_in_upper_s)}`,
    t.moves ? `moved ${t.moves} times` : "", t.restarts ? `drawn anew ${t.restarts} times` : "", t.why,
  ];
  return lines.filter(Boolean).join("\n");
}

function makeSample() {
  const row = element("div", "grid sample"), who = element("span", "who"), lane = element("div", "lane");
  who.append(element("b"), element("span"));
  lane.append(element("i", "done"), element("i", "half"), element("i", "rest"), element("i", "wait"), element("span", "moved"));
  const tokens = element("span", "tokens");
  tokens.append("", element("span"));
  row.append(who, lane, tokens);
  return row;
}

function showWhy(state, at) {
  const {straggler, decisions} = state.why;
  const idle = inflight(state) ? "No end is predicted: the controller has not forecast what runs now." : "Nothing runs.";
  $("straggler").textContent = straggler ? straggler.sentence : idle;
  $("split").hidden = $("split-note").hidden = !straggler;
  if (straggler) {
    const own = straggler.ends_in_s - straggler.sharing_s;
    $("split").style.setProperty("--own", colour(at.get(straggler.replica) ?? 0));
    $("split").children[0].style.width = `${100 * own / straggler.ends_in_s}%`;
    $("split").children[1].style.width = `${100 * straggler.sharing_s / straggler.ends_in_s}%`;
    $("own-note").textContent = `its own tokens: ${seconds(own)}`;
    $("sharing-note").textContent = straggler.sharing_s >= 0.05 ? `sharing: ${seconds(straggler.sharing_s)}` : "";
  }
  $("policy").textContent = `by ${state.decider.policy}`;
  if (decisions.length) {
    rows($("decisions"), decisions, d => `${d.tick} ${d.trajectory_id} ${d.action}`, makeDecision,
      (row, d) => showDecision(row, d, state.now_s));
  } else {
    $("decisions").kept = new Map();
    $("decisions").replaceChildren(element("p", "nothing", "None yet."));
  }
  showMore(state.why);
}

function makeDecision() {
  const row = element("div", "decision"), line = element("div", "line"), became = element("div", "became");
  line.append(element("span", "act"), element("span"), element("time"));
  became.append(element("span"), element("span"));
  row.append(line, element("p"), became);
  return row;
}

function showDecision(row, d, now_s) {
  const [line, reason, became] = row.children, [act, where, time] = line.children;
  row.classList.toggle("recorded", !d.enforced);
  act.className = `act ${d.action}`;
  act.textContent = d.action;
  const path = d.source && d.target ? `${d.source} → ${d.target}` : d.target ? `→ ${d.target}` : d.source;
  where.textContent = `${d.trajectory_id}  ${path}`;
  time.textContent = `${brief(Math.max(now_s - d.t_s, 0))} ago`;
  reason.textContent = d.reason;
  const worth = d.gain_s || d.cost_s ? `gain ${d.gain_s.toFixed(1)} s · cost ${d.cost_s.toFixed(1)} s · ` : "";
  became.firstChild.textContent = worth;
  became.lastChild.textContent = d.enforced ? d.outcome || "under way" : `only recorded (${d.mode})`;
  became.lastChild.className = d.outcome === "applied" ? "applied" : "";
}

function showMore(why) {
  const lines = [];
  const weighed = Object.entries(why.alternatives).sort((a, b) => (a[1] ?? Infinity) - (b[1] ?? Infinity)).slice(0, 4);
  if (weighed.length) {
    lines.push(["Weighed", weighed.map(([name, s]) => `${name} ${s === null ? "no end" : s < 600 ? `${s.toFixed(1)} s` : seconds(s)}`).join(" · ")]);
  }
  if (why.stack) lines.push(["Acting", why.stack]);
  const dropped = Object.entries(why.objections);
  if (dropped.length) lines.push(["Held back", dropped.map(([reason, n]) => `${n} × ${reason}`).join(" · ")]);
  $("more").replaceChildren(...lines.map(([name, text]) => {
    const line = element("p");
    line.append(element("b", "", `${name}: `), text);
    return line;
  }));
}

function showSums(state) {
  const s = state.sums;
  const facts = [
    [state.requests_open, "requests open"], [s.requests, "taken in"], [s.answered, "answered"], [s.generated_tokens, "tokens"],
    [s.moves, "moved"], [s.deferrals, "deferred"], [s.restarts, "restarted"], [s.abandoned, "abandoned"],
    [s.lost, "attempts lost", true], [s.failed, "failed", true], [s.refused, "refused", true],
  ];
  $("sums").replaceChildren(...facts.map(([n, text, alarming]) => {
    const fact = element("span", alarming && n ? "bad" : "");
    fact.append(element("b", "", number.format(n)), ` ${text}`);
    return fact;
  }));
}

ask();
