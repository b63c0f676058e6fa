// The page: a recorded run plays at once; when the engine in the worker is ready, it goes on from there.
import { $, at, draw, escaped, forget, nowShown, setPalette, toward } from "./pictures.js";
import { compared, hint, newRun, showFigures, take } from "./figures.js";
import { SCENARIOS } from "./scenarios.js";

const POWERS = [1, 2, 4, 8, 16, 32, 64],
  COUNTS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512],
  SLOTS = 4096;
const range = (least, most, by) =>
  Array.from({ length: Math.round((most - least) / by) + 1 }, (_, i) => Number((least + i * by).toFixed(2)));
const KNOBS = [
  // name, words, values: numbers for a slider, pairs for a choice
  ["The requests"],
  ["rate", "arrivals per second", range(0, 12, 0.5)],
  ["answer", "mean answer, tokens", range(10, 120, 10)],
  [
    "prompts",
    "prompts",
    [
      ["short", "short"],
      ["mixed", "some long"],
      ["long", "all long"],
      ["system", "same beginning"],
    ],
  ],
  ["temperature", "temperature", range(0, 1.2, 0.1)],
  ["The machine"],
  ["size", "block size, tokens", POWERS],
  ["blocks", "blocks", COUNTS],
  ["budget", "token budget", range(8, 128, 8)],
  ["slots", "batch slots", range(1, 16, 1)],
  [
    "policy",
    "policy",
    [
      ["fcfs", "first come"],
      ["shortest", "shortest first"],
      ["ageing", "priority, ageing"],
      ["balanced", "balanced lengths"],
    ],
  ],
  [
    "admission",
    "admission",
    [
      ["optimistic", "if it fits now"],
      ["conservative", "by worst case"],
    ],
  ],
  [
    "sharing",
    "prefix sharing",
    [
      [1, "on"],
      [0, "off"],
    ],
  ],
  [
    "victims",
    "out of blocks",
    [
      ["recompute", "recompute"],
      ["swap", "swap out"],
      ["stall", "stall"],
    ],
  ],
];
const PATIENCE = 15000; // milliseconds for a step
const FIRST_STEPS = 40; // of a scenario, which then plays
const TARGETS = { ttft: 500, itl: 50 };
const begin = await (await fetch(new URL("begin.json", import.meta.url))).json();
setPalette(begin.colors);
if (document.documentElement.matches(".door")) begin.live = false;
let settings = { ...begin.defaults, sent: [] },
  run = newRun({ ...settings }),
  previous = null,
  index = -1,
  picked = null,
  follow = "",
  scenario = null;
let worker,
  ready = false,
  live = false,
  busy = false,
  stopped = false,
  timer = 0,
  asked = new Map(),
  calls = 0,
  own = {},
  speeds = [];

// --- the engine ---------------------------------------------------------------------------------------
function ask(...call) {
  const asking = worker;
  return new Promise((...ends) => {
    asked.set(++calls, ends);
    asking.postMessage([calls, ...call]);
    if (call[0] === "step" || call[0] === "reset")
      setTimeout((mine) => asked.has(mine) && worker === asking && hang(), PATIENCE, calls);
  });
}
function hang() {
  // Python in a page can't be interrupted
  worker.terminate();
  play(false);
  for (const [, fail] of asked.values()) fail(new Error("stopped"));
  tell({
    kind: "Stopped",
    text: "A step took too long. Is there an endless loop? The engine starts again, with the course's own scheduler.",
  });
  own = {};
  const words = $("#trouble").textContent;
  load().then(() => tell({ kind: "Stopped", text: words.replace("Stopped: ", "") }));
}
async function load() {
  [ready, live, busy] = [false, false, false];
  asked = new Map();
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  const mine = worker;
  worker.onmessage = ({ data: [call, value, error] }) => {
    const ends = asked.get(call);
    asked.delete(call);
    if (error) ends?.[1](new Error(error));
    else ends?.[0](value);
  };
  try {
    await ask("start", { texts: begin.prompts, kernels: !location.search.includes("plain") });
  } catch (error) {
    begin.live = false;
    say();
    return tell({ kind: "The live engine can't start", text: `${error.message}. The recorded run still plays.` });
  }
  if (worker !== mine) return;
  ready = true;
  if (isRecorded()) await takeOver();
  else await restart(pending);
}
const isRecorded = () =>
  run.frames.every((frame, i) => frame === begin.frames[i]) && !Object.keys({ ...changed(), ...own }).length;
const isPending = () => begin.live && !live && !isRecorded(); // the picture isn't of the run that the reader wants
async function takeOver() {
  // compute what has been shown, at a step's boundary go on from there
  await ask("reset", wanted());
  for (let done = 0; done < run.frames.length;) {
    const behind = run.frames.length - done;
    await ask("steps", behind);
    done += behind;
    if (!isRecorded()) return;
  }
  live = true;
  document.body.dataset.live = run.frames.length;
  say();
}
const wanted = () => ({ ...settings, ...own });
let generation = 0,
  pending; // what to restart with, once the engine is ready
/** A new run from the beginning: the same requests, other knobs. `before`: the settings of a run to compare it with. */
async function restart({ steps = 1, keep = true, before } = {}) {
  const mine = ++generation;
  saveState();
  tell(null);
  pending = { steps, keep, before };
  if (!ready) return say();
  for (const world of before ? [before, settings] : [settings]) {
    const wasLive = live,
      old = run;
    live = false;
    const problem = await ask("reset", { ...world, ...own }).catch(() => null);
    if (mine !== generation) return;
    if (!keep) previous = null;
    else if (wasLive && old.frames.length > 20) previous = old;
    run = newRun({ ...world });
    [index, picked, stopped, live] = [-1, null, false, true];
    if (problem?.error) return stop(problem.error);
    for (let i = 1; i <= steps; i++) {
      await advance(i === steps && world === settings);
      if (mine !== generation || stopped) return;
      if (i < steps) tellState(`computing step ${i} of ${steps}${before ? `, run ${world === before ? 1 : 2} of 2` : ""}`, true);
    }
  }
  if (before) compare();
}
/** Another run, at once at a moment of it. */
function jump(wish, how, plays = true) {
  play(false);
  change(wish, async () => {
    await restart(how);
    if (!stopped) play(plays);
  });
}
async function advance(isShown = true) {
  const mine = generation,
    of = run;
  if (busy || stopped) return;
  if (!live) {
    // the recording
    if (of.frames.length < begin.frames.length)
      (take(of, begin.frames[of.frames.length]), isShown && show(of.frames.length - 1, true));
    else if (!begin.live) show(0);
    return;
  }
  busy = true;
  let result;
  try {
    result = await ask("step");
  } catch {
    return;
  } finally {
    busy = false;
  } // it was stopped
  if (mine !== generation || of !== run) return;
  if (result.error) return stop(result.error);
  const { frame, took } = result;
  take(run, frame);
  frame.took = took;
  for (const [id, why] of frame.refused) tell({ kind: `${id} can't be served`, text: why });
  if (isShown) show(run.frames.length - 1, true);
}
function stop(error) {
  stopped = true;
  play(false);
  say();
  tell(error);
}
function tell(error) {
  const box = $("#trouble");
  box.hidden = !error;
  for (const bad of document.querySelectorAll(".code .bad")) bad.classList.remove("bad");
  if (!error) return;
  const name = { "<your scheduler>": "schedule", "<your policy>": "rank" }[error.file];
  box.textContent = `${error.kind}${error.line ? ` in line ${error.line} of ${error.file.slice(1, -1)}` : ""}: ${error.text}`;
  if (name && error.line) $(`#${name}`).previousElementSibling.children[error.line - 1]?.classList.add("bad");
}

// --- what is shown ------------------------------------------------------------------------------------
function show(i, isNew = false) {
  if (!run.frames.length) return;
  const started = performance.now();
  index = Math.max(0, Math.min(i, run.frames.length - 1));
  const frame = run.frames[index],
    view = { ...run, index, picked, follow, isNew };
  nowShown(view);
  draw(view);
  showFigures(run, index, TARGETS, previous, differences());
  $("#at").textContent = frame.step;
  $("#scrub").max = run.frames.length;
  $("#scrub").value = index + 1;
  const alive = [...frame.running, ...frame.waiting].map(([id]) => id),
    options = ["", ...alive, ...(follow && !alive.includes(follow) ? [follow] : [])];
  if (options.join() !== $("#follow").dataset.options)
    (($("#follow").innerHTML = options.map((id) => `<option value="${id}">${id || "all requests"}</option>`).join("")),
      ($("#follow").dataset.options = options.join()));
  $("#follow").value = follow;
  say();
  document.body.dataset.step = frame.step;
  (window.drawn ??= []).push(performance.now() - started);
}
function say() {
  const frame = run.frames[index],
    took = frame?.took;
  if (took && frame.rows.length) {
    const made = frame.new.length,
      all = took.schedule + took.model + took.update;
    speeds = [...speeds.slice(-19), [made, all]];
    const rate = (1000 * speeds.reduce((a, [n]) => a + n, 0)) / speeds.reduce((a, [, t]) => a + t, 0);
    tellState(
      `live: scheduler ${(took.schedule + took.update).toFixed(1)} ms, model ${took.model.toFixed(0)} ms, ${Math.round(rate)} tokens/s here`,
    );
  } else if (live) tellState("live: your browser computes every token");
  else if (!begin.live) tellState("a recorded run; this copy of the page has no live engine");
  else if (isPending()) tellState("Your run starts as soon as the engine has loaded (18 MB)", true);
  else tellState("a recorded run, while the live engine loads (18 MB)");
}
/** `isOver`: the words stand over the picture, which is of another run. */
function tellState(words, isOver = false) {
  $("#says").textContent = $("#pending").textContent = words;
  $("#pending").hidden = !isOver;
  for (const part of document.querySelectorAll("main > section:not(#words)")) part.inert = isOver;
}
function play(on) {
  clearTimeout(timer);
  timer = 0;
  document.body.dataset.playing = on;
  $("#play").textContent = on ? "Pause" : "Play";
  if (!on) return saveState();
  const next = async () => {
    const began = performance.now(),
      speed = Number($("#speed").value);
    if (!document.hidden) await forward();
    if (timer) timer = setTimeout(next, speed ? Math.max(0, 1000 / speed - (performance.now() - began)) : 0);
  };
  timer = setTimeout(next, 0);
}
const isComputing = () => index < 0 && !stopped; // up to the step that the reader wants
const forward = () =>
  isPending() || isComputing() || (index < run.frames.length - 1 ? show(index + 1, true) : advance());
function pick(what, id = what?.id) {
  picked = what && (what.block !== picked?.block || what.from !== picked?.from || what.id !== picked?.id) ? what : null;
  follow = picked ? (id ?? "") : "";
  if (picked && id && picked.block === undefined) {
    const table = run.frames[index].running.find(([name]) => name === id)?.[3];
    if (picked.to > picked.from) picked = { ...picked, block: table?.[Math.floor(picked.from / settings.size)] };
  }
  if (index >= 0) show(index);
}

// --- the controls -------------------------------------------------------------------------------------
function makeKnobs() {
  $("#knobs").innerHTML =
    KNOBS.map(([name, words, values]) => {
      if (!words) return `<h2>${name}</h2>`;
      if (Array.isArray(values[0]))
        return `<label title="${hint(words)}">${words}<select name="${name}">${values.map(([value, text]) => `<option value="${value}" title="${hint(text)}">${text}</option>`).join("")}</select></label>`;
      return `<label title="${hint(words)}">${words}<b></b><input type="range" name="${name}" min="0" max="${values.length - 1}"></label>`;
    }).join("") +
    `<h2>Send one yourself</h2><div class="two" id="stories">${begin.prompts.stories.map((text, i) => `<button type="button" data-story="${i}" title="${escaped(text)}">${i + 1}</button>`).join("")}</div>
    <div class="two"><input type="text" name="text" maxlength="400" placeholder="or begin a story" aria-label="the beginning of a story"><button>send</button></div>
    <h2>Your limits</h2><div class="two"><label>TTFT, ms <input type="number" name="ttft" min="0" step="50"></label><label>ITL, ms <input type="number" name="itl" min="0" step="5"></label></div>
    <div class="two"><button type="button" id="again" title="the same knobs, other random arrivals">other arrivals</button><button type="button" id="reset">reset</button><button type="button" id="link">copy link</button></div>`;
  showKnobs();
}
function showKnobs() {
  for (const [name, , values] of KNOBS) {
    const input = document.querySelector(`#knobs [name="${name}"]`);
    if (!input) continue;
    const isChoice = Array.isArray(values[0]),
      place = isChoice
        ? 0
        : values.reduce(
            (best, value, i) => (Math.abs(value - settings[name]) < Math.abs(values[best] - settings[name]) ? i : best),
            0,
          );
    input.value = isChoice ? settings[name] : place;
    if (isChoice) continue;
    const { blocks, size } = settings,
      words = name === "blocks" ? `${blocks} of ${size} = ${blocks * size} tokens` : settings[name];
    input.previousElementSibling.textContent = words;
    input.setAttribute("aria-valuetext", words);
  }
  for (const name of ["ttft", "itl"]) $(`#knobs [name="${name}"]`).value = TARGETS[name];
}
let later = 0;
function change(wish, then = restart) {
  const memory = wish.size && !wish.blocks ? settings.blocks * settings.size : SLOTS; // another block size keeps it
  Object.assign(settings, wish);
  settings.budget = Math.max(settings.budget, Math.ceil(settings.slots / 8) * 8);
  if (memory < SLOTS || settings.blocks * settings.size > SLOTS)
    settings.blocks = COUNTS.findLast((count) => count * settings.size <= memory) ?? COUNTS[0];
  showKnobs();
  saveState();
  clearTimeout(later);
  later = setTimeout(then, 120); // while a slider is dragged, only its last value counts
}
function send(text) {
  if (!text.trim()) return;
  settings.sent = [...settings.sent, [run.frames.length + busy, text, 60]];
  run.settings.sent = settings.sent;
  if (!live) return restart({ steps: run.frames.length + 1 });
  ask("send", text, 60);
  saveState();
  if (!timer) forward();
}
$("#knobs").addEventListener("input", ({ target: { name, value } }) => {
  const values = KNOBS.find(([knob]) => knob === name)?.[2];
  if (name in TARGETS) ((TARGETS[name] = Number(value)), index >= 0 && show(index), saveState());
  else if (values && Array.isArray(values[0])) change({ [name]: values.find(([each]) => String(each) === value)[0] });
  else if (values) change({ [name]: values[value] });
});
$("#knobs").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = event.target.elements.text;
  send(field.value);
  field.value = "";
});
$("#knobs").addEventListener("click", ({ target }) => {
  if (target.dataset.story) send(begin.prompts.stories[target.dataset.story]);
  if (target.id === "again") change({ seed: settings.seed + 1 });
  if (target.id === "reset") (choose(null), change({ ...begin.defaults, sent: [] }, () => restart({ keep: false })));
  if (target.id === "link")
    (saveState(true),
      navigator.clipboard?.writeText(location.href).then(
        () => (target.textContent = "copied"),
        () => {},
      ));
});
$("#play").onclick = () => play(!timer);
$("#once").onclick = () => {
  play(false);
  forward();
};
$("#back").onclick = () => {
  play(false);
  show(index - 1);
};
$("#scrub").oninput = ({ target }) => {
  play(false);
  show(target.value - 1);
};
$("#follow").onchange = ({ target }) => {
  picked = null;
  follow = target.value;
  show(index);
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, button, canvas"))
    return;
  const key = { " ": "#play", ArrowRight: "#once", ArrowLeft: "#back" }[event.key];
  if (key) (event.preventDefault(), $(key).click());
  if (event.key === "Escape") pick(null);
});
for (const canvas of document.querySelectorAll("canvas")) {
  canvas.addEventListener("click", (event) => pick(at(canvas, event)));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return pick(null);
    const what = toward(canvas, event.key, picked);
    if (!what) return;
    event.preventDefault();
    if (what.block !== picked?.block || what.from !== picked?.from || what.id !== picked?.id) pick(what);
    $("#picked").textContent = wordsOf(what);
  });
}
function wordsOf({ id, from, to, block }) {
  const where = block === undefined ? "" : `block ${block}: `;
  if (!id) return `${where}free`;
  return to > from ? `${where}${id}, positions ${from} to ${to - 1}` : `${where}${id}`;
}
document.querySelector("main").addEventListener("click", ({ target }) => {
  const part = target.closest("[data-at], [data-from], .chip[data-id], .text b");
  if (!part) return;
  const id = part.dataset.id ?? part.closest("[data-id]").dataset.id,
    place = Number(part.dataset.at),
    { size } = settings;
  if (part.dataset.at) pick({ id, from: place, to: place + 1 });
  else
    pick({
      id,
      from: Number(part.dataset.from ?? 0),
      to: Number(part.dataset.to ?? 0),
      ...(part.dataset.block && { block: Number(part.dataset.block) }),
    });
});
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => (forget(), index >= 0 && show(index)), 100);
});
function follows() {
  const mode = document.documentElement.dataset.theme ?? localStorage.getItem("mode");
  document.documentElement.classList.toggle(
    "dark",
    mode === "dark" || (mode !== "light" && matchMedia("(prefers-color-scheme: dark)").matches),
  );
  forget();
  if (index >= 0) for (const child of [...$("#texts div").children]) child.remove();
  if (index >= 0) show(index);
}
matchMedia("(prefers-color-scheme: dark)").onchange = follows;

// --- scenarios ----------------------------------------------------------------------------------------
$("#scenarios").innerHTML = SCENARIOS.map(
  ({ name }, i) => `<button data-scenario="${i}" aria-pressed="false">${name}</button>`,
).join("");
$("#scenarios").onclick = ({ target }) => target.dataset.scenario && choose(Number(target.dataset.scenario));
function choose(which, isFromLink = false) {
  scenario = which;
  for (const button of $("#scenarios").children)
    button.setAttribute("aria-pressed", String(button.dataset.scenario === String(which)));
  $("#question").hidden = which === null;
  if (which === null) return;
  const { ask: question, choices, right, says, set, then, change: words, steps, knee } = SCENARIOS[which],
    box = $("#question"),
    first = { ...begin.defaults, ...set, sent: [] };
  box.innerHTML = `<p><b>${question}</b></p>${choices.map((text, i) => `<button data-choice="${i}">${text}</button>`).join("")}`;
  box.onclick = ({ target }) => {
    if (target.dataset.choice) {
      const is = Number(target.dataset.choice) === right;
      box.innerHTML = `<p><b>${is ? "Yes." : `Not quite: ${choices[right].toLowerCase()}.`}</b> ${says}</p><button data-then="1" aria-pressed="false">${words}</button> and compare both runs up to step ${steps}${knee ? ` <button data-knee="1">Draw the curve</button><canvas role="img" hidden></canvas>` : ""}<table hidden></table>`;
      box.querySelector("button").focus();
    } else if (target.dataset.then) {
      const isOn = target.getAttribute("aria-pressed") === "false";
      target.setAttribute("aria-pressed", isOn);
      jump({ ...first, ...(isOn && then) }, { steps, before: isOn ? first : undefined }, timer > 0);
    } else if (target.dataset.knee) drawKnee(box.querySelector("canvas"));
  };
  if (!isFromLink) jump(first, { steps: FIRST_STEPS, keep: false });
}
/** What the reader changed since the run before, in words: [before, now], such as ["token budget 128", "token budget 16"]. */
function differences() {
  const text = (name, value) => {
    const [, words, values] = KNOBS.find(([knob]) => knob === name);
    return `${words.split(",")[0]} ${Array.isArray(values[0]) ? values.find(([each]) => each === value)[1] : value}`;
  };
  const of = [previous?.settings, run.settings];
  const names = previous ? KNOBS.map(([name]) => name).filter((name) => of[0][name] !== of[1][name]) : [];
  return names.length ? of.map((each) => names.map((name) => text(name, each[name])).join(", ")) : null;
}
/** The scenario's figures, of the run before and of this one, over the steps that its text is about. */
function compare() {
  const table = $("#question table");
  if (!table || scenario === null) return;
  const { steps, watch } = SCENARIOS[scenario],
    rows = compared([previous, run], steps, TARGETS, watch);
  table.hidden = false;
  table.innerHTML =
    `<caption>Steps 1 to ${steps} of both runs</caption><tr><td></td>${differences()
      .map((head) => `<th scope="col">${head}</th>`)
      .join("")}</tr>` +
    rows
      .map(
        ([what, ...both]) => `<tr><th scope="row">${what}</th>${both.map((each) => `<td>${each}</td>`).join("")}</tr>`,
      )
      .join("");
}
async function drawKnee(canvas) {
  const rates = range(1, 12, 1),
    points = ready ? await ask("knee", settings, rates) : [];
  canvas.hidden = false;
  canvas.style.cssText = "height:150px;max-width:620px;margin-top:8px";
  const [W, H] = [canvas.clientWidth, canvas.clientHeight],
    g = canvas.getContext("2d"),
    style = getComputedStyle(document.documentElement);
  [canvas.width, canvas.height] = [W * devicePixelRatio, H * devicePixelRatio];
  g.scale(devicePixelRatio, devicePixelRatio);
  const most = Math.max(...points.map(([, wait]) => wait)),
    x = (rate) => 44 + ((W - 60) * (rate - 1)) / 11,
    y = (wait) => H - 22 - ((H - 36) * wait) / most;
  g.font = "11px system-ui";
  g.strokeStyle = g.fillStyle = style.getPropertyValue("--soft");
  for (const [rate] of points) g.fillText(rate, x(rate) - 3, H - 6);
  g.fillText(`TTFT, 95 %, after 12 s: up to ${(most / 1000).toFixed(1)} s; across: arrivals per second`, 4, 11);
  g.strokeStyle = g.fillStyle = style.getPropertyValue("--key");
  g.lineWidth = 2;
  g.beginPath();
  points.forEach(([rate, wait], i) => g[i ? "lineTo" : "moveTo"](x(rate), y(wait)));
  g.stroke();
  for (const [rate, wait] of points) g.fillRect(x(rate) - 2.5, y(wait) - 2.5, 5, 5);
  canvas.setAttribute(
    "aria-label",
    points.map(([rate, wait]) => `${rate} per second: ${Math.round(wait)} ms`).join(", "),
  );
}

// --- your own scheduler -------------------------------------------------------------------------------
const MARKS =
  /("""[\s\S]*?"""|"[^"\n]*"|'[^'\n]*')|(#.*)|\b(def|return|if|not|and|or|in|for|while|else|elif|break|continue|True|False|None|class|import|from|lambda|is|self|raise|try|except|pass|min|max|len|sorted|list|sum)\b/g;
function edit(field, code) {
  if (code !== undefined) field.value = code;
  let [marked, end] = ["", 0];
  for (const { 0: all, 1: text, 2: comment, index: from } of field.value.matchAll(MARKS)) {
    const kind = text ? "s" : comment ? "c" : "k";
    marked +=
      escaped(field.value.slice(end, from)) +
      all
        .split("\n")
        .map((line) => `<span class="${kind}">${escaped(line)}</span>`)
        .join("\n");
    end = from + all.length;
  }
  marked += escaped(field.value.slice(end));
  field.previousElementSibling.innerHTML = marked
    .split("\n")
    .map((line) => `<span>${line || " "}</span>`)
    .join("\n");
}
for (const field of document.querySelectorAll(".code textarea")) {
  let indents = true; // Tab indents, and Escape gives it back, so that the keyboard can leave
  field.addEventListener("input", () => edit(field));
  field.addEventListener("scroll", () => field.previousElementSibling.scrollTo(field.scrollLeft, field.scrollTop));
  field.addEventListener("blur", () => (indents = true));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") indents = false;
    if (event.key !== "Tab" || event.shiftKey || !indents) return;
    event.preventDefault();
    document.execCommand("insertText", false, "    ");
  });
}
$("#write").onclick = () => {
  $("#own").hidden = !$("#own").hidden;
  $("#write").setAttribute("aria-expanded", String(!$("#own").hidden));
};
$("#run").onclick = async () => {
  own = { schedule: $("#schedule").value, rank: $("#rank").value };
  await restart();
  if (!stopped) play(true);
};
$("#ours").onclick = async () => {
  own = {};
  for (const [name, code] of Object.entries(begin.sources)) edit($(`#${name}`), code);
  await restart();
};

// --- the address ---------------------------------------------------------------------------------------
const changed = () =>
  Object.fromEntries(
    Object.entries(settings).filter(([name, value]) =>
      name === "sent" ? value.length : value !== begin.defaults[name],
    ),
  );
function saveState(isExact = !timer) {
  const parts = Object.entries(changed()).map(([name, value]) => [
    name,
    name === "sent" ? JSON.stringify(value) : value,
  ]);
  if (TARGETS.ttft !== 500 || TARGETS.itl !== 50) parts.push(["limits", `${TARGETS.ttft},${TARGETS.itl}`]);
  if (scenario !== null) parts.push(["scenario", scenario]);
  if (isExact && index > 0) parts.push(["step", run.frames[index].step]);
  history.replaceState(null, "", parts.length ? `#${new URLSearchParams(parts)}` : location.pathname + location.search);
}
/** Takes from the address only what a knob can be set to. Returns the step that it names. */
function loadState() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, , values] of KNOBS) {
    const value = values
      ?.map((each) => (Array.isArray(each) ? each[0] : each))
      .find((each) => String(each) === given.get(name));
    if (value !== undefined) settings[name] = value;
  }
  if (Number.isInteger(Number(given.get("seed"))) && given.has("seed")) settings.seed = Number(given.get("seed"));
  const limits = (given.get("limits") ?? "").split(",").map(Number);
  if (limits.length === 2 && limits.every((limit) => limit >= 0)) [TARGETS.ttft, TARGETS.itl] = limits;
  try {
    settings.sent = JSON.parse(given.get("sent") ?? "[]").map(([step, text, most]) => [
      Number(step),
      String(text).slice(0, 400),
      Math.min(Number(most), 200),
    ]);
  } catch {
    settings.sent = [];
  }
  if (given.has("scenario") && SCENARIOS[given.get("scenario")]) choose(Number(given.get("scenario")), true);
  return Math.min(Number(given.get("step")) || 0, 5000);
}

for (const [name, code] of Object.entries(begin.sources)) edit($(`#${name}`), code);
$("#home").hidden = !begin.home;
const wantedStep = loadState();
makeKnobs();
follows();
const isNew = Object.keys(changed()).length > 0,
  first = wantedStep && !isNew ? Math.min(wantedStep, begin.frames.length) : 60;
for (let i = 0; i < first; i++) take(run, begin.frames[i]); // not an empty machine
show(run.frames.length - 1);
document.body.dataset.first = Math.round(performance.now());
if (!wantedStep && !location.search.includes("still") && !matchMedia("(prefers-reduced-motion: reduce)").matches)
  play(true);
window.room = {
  ask,
  get run() {
    return run;
  },
  get state() {
    return { live, ready, index, settings, timer, stopped };
  },
}; // for tests
if (begin.live) await load();
if (wantedStep > run.frames.length || (wantedStep && isNew)) await restart({ steps: wantedStep, keep: false });
document.body.dataset.ready = live;
