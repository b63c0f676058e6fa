// What a run amounts to. `take` adds a frame to what is known of its requests; `figures` sums up the frames to one of them.
import { $ } from "./pictures.js";

/** Everything that is known of a run: its frames, its requests, and the times of tokens in the order they came. */
export const newRun = (settings) => ({
  settings,
  frames: [],
  requests: new Map(),
  ttft: [],
  itl: [],
  done: [],
  high: new Map(),
});

export function take(run, frame) {
  const { frames, requests } = run,
    before = frames.at(-1),
    now = frame.step,
    sum = { ...(before?.sums ?? { out: 0, computed: 0, again: 0, hit: 0, preempted: 0, used: 0, empty: 0, most: 0 }) };
  for (const [id, words, most, tier, ms] of frame.arrived)
    requests.set(id, {
      id,
      words: [...words],
      prompt: words.length,
      isYours: run.settings.sent?.some(([, text]) => text === words.join("")),
      most,
      tier,
      ms,
      step: now,
      spans: [],
      marks: [],
      end: Infinity,
      ends: words.length,
    });
  for (const [id] of frame.refused) requests.get(id).end = now;
  for (const [id, start, count] of frame.rows) {
    sum.computed += count;
    sum.again += Math.max(0, Math.min(start + count, run.high.get(id) ?? 0) - start);
    run.high.set(id, Math.max(run.high.get(id) ?? 0, start + count));
  }
  for (const [id, word] of frame.new) {
    const request = requests.get(id),
      last = request.last;
    request.words.push(word);
    sum.out++;
    request.ends = request.words.length;
    if (last === undefined) run.ttft.push((request.ttft = frame.ms - request.ms));
    else run.itl.push(frame.ms - last);
    request.first ??= frame.ms;
    request.last = frame.ms;
  }
  const span = (id, kind) => {
    const { spans } = requests.get(id),
      last = spans.at(-1);
    if (last?.[0] === kind && last[2] === now - 1) last[2] = now;
    else spans.push([kind, now - 1, now]);
  };
  for (const [id, start] of frame.rows)
    span(id, start < requests.get(id).prompt - 1 || start === 0 ? "prefill" : "decode");
  for (const [id] of frame.waiting) span(id, "wait");
  for (const id of frame.preempted) {
    requests.get(id).marks.push(["lost", now]);
    sum.preempted++;
  }
  for (const [id, count] of Object.entries(frame.cached)) {
    requests.get(id).marks.push(["hit", now]);
    sum.hit += count;
  }
  for (const [id] of frame.finished) {
    const request = requests.get(id),
      tokens = request.words.length - request.prompt;
    request.end = now;
    run.done.push([request.ttft, tokens > 1 ? (request.last - request.first) / (tokens - 1) : 0]);
  }
  frame.owner = before ? before.owner.slice() : []; // block -> the last request that had it
  const filled = new Map(),
    { size } = run.settings;
  for (const [id, , computed, blocks] of frame.running)
    blocks.forEach((block, i) => {
      frame.owner[block] = id;
      filled.set(block, Math.max(filled.get(block) ?? 0, Math.min(size, Math.max(0, computed - i * size))));
    });
  frame.used = filled.size;
  frame.empty = filled.size * size - [...filled.values()].reduce((a, b) => a + b, 0);
  sum.used += frame.used;
  sum.empty += frame.empty;
  sum.most = Math.max(sum.most, frame.rows.length);
  frame.sums = { ...sum, ttft: run.ttft.length, itl: run.itl.length, done: run.done.length };
  frames.push(frame);
}

/** What the list of words says about a name on the page. */
export const hint = (name) =>
  [...document.querySelectorAll("#words dt")].find((dt) => dt.textContent.split(", ").some((word) => name.includes(word)))?.nextElementSibling
    .textContent ?? "";
const percentile = (list, share) =>
  list.length ? Float64Array.from(list).sort()[Math.floor(share * (list.length - 1))] : null;
const ms = (value) =>
  value === null ? "–" : value < 9950 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(0)} s`;
const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

/** [what, value, small print] of each tile, at a frame of a run. `isWhole`: over all steps up to it. */
export function figures(run, index, targets, isWhole = false) {
  const frame = run.frames[index],
    { sums } = frame,
    past = run.frames[isWhole ? 0 : Math.max(0, index - 100)],
    { blocks, size, slots } = run.settings,
    [used, empty, of] = isWhole ? [sums.used, sums.empty, index + 1] : [frame.used, frame.empty, 1];
  const good = run.done.slice(0, sums.done).filter(([ttft, itl]) => ttft <= targets.ttft && itl <= targets.itl).length;
  // A request that still waits for its first token counts with its wait so far: else the slowest would be left out.
  const waits = [...frame.waiting, ...frame.running]
    .map(([id]) => run.requests.get(id))
    .filter(({ first }) => !(first <= frame.ms));
  const ttft = [...run.ttft.slice(0, sums.ttft), ...waits.map((request) => frame.ms - request.ms)],
    itl = run.itl.slice(0, sums.itl);
  const span = frame.ms - past.ms || frame.ms,
    rate = (1000 * (sums.out - (past === frame ? 0 : past.sums.out))) / span;
  return [
    ["tokens per second", Math.round(rate), isWhole ? "" : "last 100 steps"],
    [
      "first token (TTFT)",
      ms(percentile(ttft, 0.5)),
      `95 %: ${ms(percentile(ttft, 0.95))}, longest ${ms(percentile(ttft, 1))}`,
    ],
    [
      "next token (ITL)",
      ms(percentile(itl, 0.5)),
      `95 %: ${ms(percentile(itl, 0.95))}, longest ${ms(percentile(itl, 1))}`,
    ],
    ["goodput", `${((1000 * good) / frame.ms).toFixed(1)} /s`, `${good} of ${sums.done} within limits`],
    ["cache in use", share(used, of * blocks), isWhole ? "on average" : `${used} of ${blocks} blocks`],
    ["empty slots", share(empty, used * size), isWhole ? "of taken blocks, on average" : `${empty} in taken blocks`],
    ["computed again", share(sums.again, sums.computed), `${sums.again} of ${sums.computed} tokens`],
    [
      "preemptions",
      sums.preempted,
      isWhole ? "" : frame.turnedAway ? `turned away: ${frame.turnedAway}` : `blocks evicted: ${frame.evicted}`,
    ],
    ["found in the cache", sums.hit, "tokens"],
    ...(isWhole ? [["most requests in a step", sums.most, `of ${slots} batch slots`]] : []),
  ];
}

/** [what, first, second] of the named figures: of two runs, over the same steps. */
export function compared(runs, steps, targets, names) {
  const both = runs.map((run) => new Map(figures(run, steps - 1, targets, true).map(([what, ...all]) => [what, all])));
  return names.map((what) => [what, ...both.map((each) => `<b>${each.get(what)[0]}</b> ${each.get(what)[1].replace(/^95/, "median, 95")}`)]);
}

/** The tiles; those of the run before, at the same step or at its last one, stand below. */
export function showFigures(run, index, targets, previous, differences) {
  const at = previous && Math.min(index, previous.frames.length - 1),
    now = figures(run, index, targets),
    old = previous && figures(previous, at, targets);
  $("#figures small").textContent = old
    ? `before: the run ${differences ? `with ${differences[0]}` : "before"}, ${at === index ? "at the same step" : `which ended at step ${at + 1}`}`
    : `after ${(run.frames[index].ms / 1000).toFixed(1)} s of the simulated machine`;
  $("#figures dl").innerHTML = now
    .map(
      ([what, value, small], i) =>
        `<div title="${hint(what)}"><dt>${what}</dt><dd>${value}${old ? ` <small class="old">before: ${old[i][1]}</small>` : ""}<small>${small}</small>${old?.[i][2].includes("longest") ? `<small>before: ${old[i][2].slice(6)}</small>` : ""}</dd></div>`,
    )
    .join("");
}
