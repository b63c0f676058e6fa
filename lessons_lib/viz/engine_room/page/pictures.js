// Draws one step of a run: a frame, as room.py makes it, and the history before it. A request has one color everywhere.
export const $ = (query) => document.querySelector(query);
export const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
const numberOf = (id) => [...id].reduce((number, letter) => 26 * number + letter.charCodeAt(0) - 64, 0) - 1; // A: 0, AA: 26
const sum = (list) => list.reduce((a, b) => a + b, 0);
const still = matchMedia("(prefers-reduced-motion: reduce)");
let palette = [],
  hits = new Map(),
  pulses = [],
  spoken = new Set();

export const setPalette = (colors) => (palette = colors);
export const isDark = () => document.documentElement.classList.contains("dark");
/** Fill, text and outline of a request. */
const colors = (id) => palette[numberOf(id) % palette.length].slice(...(isDark() ? [3, 6] : [0, 3]));
const style = (id) => {
  const [fill, text, outline] = colors(id);
  return `--fill:${fill};--text:${text};--own:${outline}`;
};
const tokens = new Map(),
  sizes = new Map(); // asked for once: the answers cost a layout
const token = (name) =>
  tokens.get(name) ??
  tokens.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim()).get(name);
export const forget = () => (tokens.clear(), sizes.clear());
export const measure = () =>
  document
    .querySelectorAll("main canvas")
    .forEach((each) => sizes.has(each) || sizes.set(each, [each.clientWidth, each.clientHeight]));

/** A canvas, sized for its place and cleared, with a list of what is where. */
function surface(query) {
  const canvas = $(query),
    ratio = devicePixelRatio,
    [W, H] = sizes.get(canvas);
  if (canvas.width !== Math.round(W * ratio) || canvas.height !== Math.round(H * ratio))
    [canvas.width, canvas.height] = [W * ratio, H * ratio];
  const g = canvas.getContext("2d"),
    list = [];
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, W, H);
  g.globalAlpha = 1;
  hits.set(canvas, list);
  return { g, W, H, canvas, hit: (x, y, w, h, what) => list.push([x, y, w, h, what]) };
}
/** What is at a point of a canvas, the last drawn first. */
export function at(canvas, event) {
  const box = canvas.getBoundingClientRect(),
    [x, y] = [event.clientX - box.left, event.clientY - box.top];
  return (
    hits.get(canvas)?.findLast(([left, top, w, h]) => x >= left && x < left + w && y >= top && y < top + h)?.[4] ?? null
  );
}

/** What an arrow key leads to, from what is picked: the nearest in its direction; the first of all if nothing is. */
export function toward(canvas, key, picked) {
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  const list = hits.get(canvas) ?? [];
  if (!way || !list.length) return null;
  const isPicked = ({ id, from, block }) =>
    block === undefined ? id === picked?.id && from === picked?.from : block === picked?.block;
  const now = list.find(([, , , , what]) => isPicked(what));
  if (!now) return list[0][4];
  const center = ([x, y, w, h]) => [x + w / 2, y + h / 2],
    [x, y] = center(now);
  const cost = (place) => {
    const [dx, dy] = center(place).map((value, i) => value - [x, y][i]);
    const along = dx * way[0] + dy * way[1],
      across = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
    return along > 0.5 ? along + 3 * across : Infinity;
  };
  const next = list.reduce((best, place) => (cost(place) < cost(best) ? place : best), now);
  return next[4];
}

/** view: frames, index, requests, settings, picked ({id, from, to, block}), follow, figures, isNew (the next step, not a jump). */
export function draw(view) {
  const frame = view.frames[view.index];
  view.follow ||= view.picked?.id;
  measure();
  if (view.isNew && !still.matches) pulse(view, frame);
  queue(view, frame);
  step(view, frame);
  mask(view, frame);
  pool(view, frame);
  tables(view, frame);
  texts(view, frame);
  gantt(view, frame);
}
const away = (view, id) => (view.follow && view.follow !== id ? "away" : "");

/** Why the next request waits: the rule of the scheduler that held it back when the step began. */
function why({ requests, settings }, { why: [id, rule, needed, free], running, finished, preempted, stalled, waiting }) {
  if (!id) return "";
  const { blocks, size, slots, budget, policy } = settings,
    ran = [...running, ...finished].map(([name]) => name),
    promised = sum([...ran, id].map((name) => Math.ceil((requests.get(name).prompt + requests.get(name).most - 1) / size)));
  const says = {
    own: "your scheduler didn't admit it",
    preempted: `${preempted.map((name) => (name === id ? "it" : name)).join(", ")} lost blocks in this step, which therefore admits none`,
    stalled: `${stalled.join(", ")} stalls, and a step with a stall admits none`,
    slots: `${slots} of ${slots} batch slots taken`,
    budget: `the budget of ${budget} tokens is used up`,
    admission:
      settings.admission === "conservative"
        ? `with those that run it may need ${promised} blocks, and the pool has ${blocks}`
        : `it needs ${needed} block${needed > 1 ? "s" : ""} and one in reserve, ${free} free`,
  }[rule];
  const ended = finished.length && !/own|budget/.test(rule) ? ` when the step began (${finished.map(([name]) => name).join(", ")} finished since)` : "",
    order = { fcfs: "first come, first served", shortest: "shortest first", ageing: "priority, ageing", balanced: "balanced lengths" };
  return `${id} waits: ${says}${ended}${waiting.length > 1 && rule !== "own" ? `. The others: behind ${id}, ${order[policy]}` : ""}.`;
}

function queue(view, frame) {
  const { requests, frames, index, settings } = view,
    before = new Set(frames[index - 1]?.waiting.map(([id]) => id));
  $("#queue small").textContent = frame.waiting.length ? `${frame.waiting.length} in order` : "none";
  $("#why").textContent = why(view, frame);
  $("#queue div").innerHTML =
    frame.waiting
      .slice(0, 4)
      .map(([id, tokens, swapped]) => {
        const { words, prompt, tier, most, isYours } = requests.get(id),
          lost = frame.preempted.includes(id) || tokens > prompt;
        const state = swapped
          ? `swapped out, ${swapped} blocks`
          : lost
            ? `lost, ${tokens} again`
            : `${prompt} + up to ${most}${settings.policy === "ageing" ? `, tier ${tier}` : ""}`;
        return `<div class="chip ${away(view, id)} ${lost ? "lost" : ""} ${before.has(id) ? "" : "new"}" data-id="${id}" style="${style(id)}" title="a prompt of ${prompt} tokens, up to ${most} in the answer"><b>${id}</b> ${isYours ? "yours, " : ""}${state}<br>${escaped(words.slice(0, 14).join(""))}</div>`;
      })
      .join("") + (frame.waiting.length > 4 ? `<div class="chip more">+ ${frame.waiting.length - 4}</div>` : "");
}

function step(view, frame) {
  const { requests, settings, picked } = view,
    used = sum(frame.rows.map(([, , count]) => count));
  const told = [`${used} of ${settings.budget} tokens`, `${frame.running.length} of ${settings.slots} batch slots`];
  told.push(`takes ${frame.ms - (view.frames[view.index - 1]?.ms ?? 0)} ms`);
  if (frame.preempted.length) told.push(`preempted: ${frame.preempted.join(", ")}`);
  if (frame.stalled.length) told.push(`no block for ${frame.stalled.join(", ")}`);
  if (frame.swaps) told.push(`${frame.swaps} blocks copied`);
  $("#step small").textContent = told.join(" · ");
  $(".row").style.setProperty("--n", frame.rows.length);
  $(".row").innerHTML =
    frame.rows
      .map(([id, start, count]) => {
        const { words, prompt } = requests.get(id),
          text = escaped(words.slice(start, start + count).join("")),
          hit = frame.cached[id];
        const what = count > 1 || start < prompt - 1 ? `${hit ? `${hit} found, ` : ""}+${count}` : "";
        const marked = picked?.id === id && picked.to > start && picked.from < start + count ? "marked" : "";
        return `<div class="${away(view, id)} ${marked}" data-id="${id}" data-from="${start}" data-to="${start + count}" style="flex:${count} 1 0;${style(id)}" title="${id}: ${text}"><b>${id}</b> ${what}<br>${text}</div>`;
      })
      .join("") +
    (used < settings.budget
      ? `<div class="unused" style="flex:${settings.budget - used} 1 0" title="unused budget">${settings.budget - used} unused</div>`
      : "");
}

function mask(view, frame) {
  const { g, W, H, canvas, hit } = surface("#mask"),
    { settings, picked } = view,
    { size } = settings,
    foot = 16;
  const keys = sum(frame.rows.map(([, start, count]) => start + count)),
    T = sum(frame.rows.map(([, , count]) => count));
  canvas.setAttribute(
    "aria-label",
    T
      ? `Attention mask: ${T} tokens read ${keys} cached tokens; ${frame.rows.map(([id, start, count]) => `${id}: ${count} of ${start + count}`).join(", ")}`
      : "No token is computed in this step",
  );
  const gap = 5,
    w = (W - gap * (frame.rows.length - 1)) / Math.max(keys, 1),
    h = Math.min(34, (H - foot) / Math.max(T, 1));
  let [x, y] = [0, 0];
  for (const [id, start, count] of frame.rows) {
    const [fill, , outline] = colors(id),
      wide = (start + count) * w,
      faint = view.follow && view.follow !== id ? 0.25 : 1;
    g.globalAlpha = faint;
    g.fillStyle = token("--empty");
    g.fillRect(x, 0, wide, T * h);
    g.fillStyle = fill;
    for (let i = 0; i < count; i++) g.fillRect(x, y + i * h, (start + i + 1) * w, Math.max(h - 1, 0.6));
    g.fillStyle = token("--panel"); // borders of blocks
    if (size * w > 4) for (let b = size; b < start + count; b += size) g.fillRect(x + b * w - 0.5, 0, 1, T * h);
    g.fillStyle = outline;
    g.font = "bold 11px system-ui";
    const width = (text) => g.measureText(text).width,
      label = [`${id} · ${start + count} keys`, id].find((text) => width(text) < wide + gap);
    if (label) g.fillText(label, Math.min(x, W - width(label)), T * h + 12);
    for (let p = 0; p < start + count; p += size)
      hit(x + p * w, 0, Math.min(size, start + count - p) * w, T * h, {
        id,
        from: p,
        to: Math.min(p + size, start + count),
      });
    if (picked?.id === id && picked.from < start + count) {
      g.globalAlpha = 1;
      g.strokeStyle = token("--ink");
      g.lineWidth = 2;
      g.strokeRect(x + picked.from * w + 1, 1, (Math.min(picked.to, start + count) - picked.from) * w - 2, T * h - 2);
    }
    x += wide + gap;
    y += count * h;
  }
}

/** Blocks that something happens to flash once: taken from a request, found in the cache, or evicted. */
function pulse({ frames, index, settings }, frame) {
  const before = frames[index - 1],
    now = performance.now(),
    add = (blocks, color) => blocks.forEach((block) => pulses.push({ block, color, start: now }));
  pulses = [];
  for (const [id, , , blocks] of before?.running ?? []) if (frame.preempted.includes(id)) add(blocks, token("--bad"));
  for (const [id, , , blocks] of frame.running)
    if (frame.cached[id]) add(blocks.slice(0, frame.cached[id] / settings.size), token("--key"));
  const free = new Set(frame.findable),
    taken = new Set(frame.running.flatMap(([, , , blocks]) => blocks));
  const found = new Set(pulses.map(({ block }) => block));
  add(
    (before?.findable ?? []).filter((block) => !free.has(block) && taken.has(block) && !found.has(block)),
    token("--ink"),
  );
}

function pool(view, frame) {
  const { settings, picked } = view,
    { size, blocks: count } = settings,
    { g, W, H, canvas, hit } = surface("#pool canvas");
  const users = new Map(),
    findable = new Set(frame.findable);
  for (const [id, , computed, blocks] of frame.running)
    blocks.forEach((block, i) =>
      users.set(block, [...(users.get(block) ?? []), [id, Math.max(0, Math.min(size, computed - i * size)), i]]),
    );
  const shared = [...users.values()].filter((list) => list.length > 1).length;
  $("#pool small").textContent =
    `${count} blocks of ${size} ${size > 1 ? "tokens" : "token"}: ${users.size} in use${shared ? `, ${shared} shared` : ""}, ${findable.size} free but findable (dashed)`;
  canvas.setAttribute(
    "aria-label",
    `Block pool: ${users.size} of ${count} blocks in use. ${frame.running.map(([id, , , blocks]) => `${id} has ${blocks.length}`).join(", ")}`,
  );
  let across = Math.max(1, Math.ceil(Math.sqrt((count * W) / H / 1.5)));
  while (across > 1 && Math.ceil(count / across) === Math.ceil(count / (across - 1))) across--;
  const rows = Math.ceil(count / across),
    cw = W / across,
    ch = Math.min(H / rows, 56),
    gap = cw > 12 ? 3 : 1,
    centers = [];
  g.font = "10px system-ui";
  for (let block = 0; block < count; block++) {
    const x = (block % across) * cw + 0.5,
      y = Math.floor(block / across) * ch + 0.5,
      w = cw - gap,
      h = ch - gap,
      list = users.get(block) ?? [];
    centers[block] = [x + w / 2, y + h / 2];
    g.globalAlpha = view.follow && !list.some(([id]) => id === view.follow) ? 0.3 : 1;
    g.fillStyle = token("--empty");
    g.fillRect(x, y, w, h);
    const last = frame.owner[block];
    if (!list.length && findable.has(block) && last) {
      // its contents are still there
      g.fillStyle = colors(last)[0];
      g.save();
      g.globalAlpha *= 0.22;
      g.fillRect(x, y, w, h);
      g.restore();
    }
    list.forEach(([id, filled], i) => {
      // sharers: stripes, one above the other
      const [fill, , outline] = colors(id),
        high = h / list.length;
      g.fillStyle = fill;
      g.fillRect(x, y + i * high, (w * filled) / size, high);
      if (w > 9) ((g.strokeStyle = outline), (g.lineWidth = 1), g.strokeRect(x, y + i * high, w, high));
    });
    g.setLineDash(!list.length && findable.has(block) && w > 9 ? [3, 2] : []);
    g.lineWidth = 1;
    g.strokeStyle = list.length ? colors(list[0][0])[2] : token(findable.has(block) ? "--soft" : "--line");
    if (w > 9) g.strokeRect(x, y, w, h);
    g.setLineDash([]);
    if (w > 20 && h > 11) {
      const filled = list.length === 1 ? (list[0][1] * w) / size : 0,
        label = `${block}${list.length === 1 && w > 44 ? ` ${list[0][0]}` : ""}`,
        wide = g.measureText(label).width + 4,
        isOver = filled > wide,
        isBeside = list.length < 2 && !isOver && filled + wide <= w;
      g.fillStyle = isOver ? colors(list[0][0])[1] : token("--ink");
      if (list.length && !isOver && !isBeside)
        ((g.strokeStyle = token("--empty")), (g.lineWidth = 3), g.strokeText(label, x + 3, y + 11));
      g.fillText(label, x + 3 + (isBeside ? filled : 0), y + 11);
    }
    const owner = list.find(([id]) => id === view.follow) ?? list[0];
    hit(x, y, cw, ch, owner ? { id: owner[0], from: owner[2] * size, to: (owner[2] + 1) * size, block } : { block });
    if (picked?.block === block)
      ((g.globalAlpha = 1), (g.strokeStyle = token("--ink")), (g.lineWidth = 2.5), g.strokeRect(x, y, w, h));
  }
  g.globalAlpha = 1;
  const table = frame.running.find(([id]) => id === view.follow)?.[3];
  if (table) {
    // the way through its blocks, in the order of its text
    g.strokeStyle = token("--ink");
    g.lineWidth = 1.5;
    g.globalAlpha = 0.6;
    g.beginPath();
    table.forEach((block, i) => g[i ? "lineTo" : "moveTo"](...centers[block]));
    g.stroke();
    table.forEach((block, i) => {
      g.beginPath();
      g.arc(...centers[block], i ? 2 : 4, 0, 7);
      g.fillStyle = token("--ink");
      g.fill();
    });
  }
  const now = performance.now();
  pulses = pulses.filter(({ start }) => now - start < 600);
  for (const { block, color, start } of pulses) {
    const part = (now - start) / 600,
      x = (block % across) * cw,
      y = Math.floor(block / across) * ch,
      grow = 5 * (1 - part);
    g.globalAlpha = 1 - part;
    g.strokeStyle = color;
    g.lineWidth = 3;
    g.strokeRect(x - grow / 2 + 1, y - grow / 2 + 1, cw - gap + grow, ch - gap + grow);
  }
  if (pulses.length) requestAnimationFrame(() => view === newest && pool(view, frame));
}
let newest;
export const nowShown = (view) => (newest = view);

function tables(view, frame) {
  const users = new Map();
  for (const block of frame.running.flatMap(([, , , blocks]) => blocks)) users.set(block, (users.get(block) ?? 0) + 1);
  const { size } = view.settings,
    fit = 40;
  $("#tables").innerHTML = frame.running
    .map(
      ([id, , , blocks]) =>
        `<div class="table ${away(view, id)}" style="${style(id)}"><b>${id}</b>${blocks
          .slice(0, fit)
          .map(
            (block, i) =>
              `<i class="${users.get(block) > 1 ? "shared" : ""} ${view.picked?.block === block ? "marked" : ""}" data-id="${id}" data-block="${block}" data-from="${i * size}" data-to="${(i + 1) * size}">${block}</i>`,
          )
          .join("")}${blocks.length > fit ? `+ ${blocks.length - fit}` : ""}</div>`,
    )
    .join("");
}

/** Each request's text; only what is new is added, and what a jump takes back is removed. */
function texts(view, frame) {
  const { requests, picked, frames, index } = view,
    box = $("#texts div"),
    wanted = frame.running.map(([id, tokens, computed]) => [
      id,
      tokens,
      computed < requests.get(id).prompt ? "reading its prompt" : "",
      "",
    ]);
  for (let i = index; i >= 0 && i > index - 60 && wanted.length < frame.running.length + 4; i--)
    for (const [id, why] of frames[i].finished)
      wanted.push([id, requests.get(id).ends, why === "stop" ? "finished its story" : "reached its limit", "done"]);
  $("#texts small").textContent = `${frame.running.length} running`;
  const old = new Map([...box.children].map((child) => [child.dataset.id, child]));
  wanted.forEach(([id, tokens, says, kind], place) => {
    const request = requests.get(id),
      { words, prompt } = request,
      isSame = old.get(id)?.request === request, // not the one of this name in another run
      child = isSame ? old.get(id) : document.createElement("div");
    if (isSame) old.delete(id);
    else {
      child.request = request;
      child.dataset.id = id;
      child.innerHTML = `<small></small><b>${id}</b><p></p>`;
      child.style = style(id);
    }
    child.className = `text ${kind} ${away(view, id)}`;
    child.firstChild.textContent = [request.isYours && "yours", says].filter(Boolean).join(", ");
    const p = child.lastChild;
    while (p.childElementCount > tokens) p.lastChild.remove();
    for (let i = p.childElementCount; i < tokens; i++) {
      const span = document.createElement(i < prompt ? "span" : "em");
      span.dataset.at = i;
      span.textContent = words[i];
      p.append(span);
    }
    for (const marked of p.querySelectorAll(".marked, .last")) marked.classList.remove("marked", "last");
    if (!kind && tokens > prompt) p.lastChild?.classList.add("last");
    if (picked?.id === id)
      for (let i = picked.from; i < Math.min(picked.to, tokens); i++) p.children[i]?.classList.add("marked");
    if (box.children[place] !== child) box.insertBefore(child, box.children[place] ?? null);
  });
  for (const child of old.values()) child.remove();
}

function gantt(view, frame) {
  const { g, W, H, canvas, hit } = surface("#time canvas"),
    { requests, index } = view,
    now = index + 1,
    foot = 15,
    left = 22,
    right = W - 8; // a mark or the line of the present step needs room
  const steps = Math.max(60, Math.min(240, Math.floor((right - left) / 5))),
    first = Math.max(0, now - steps),
    w = (right - left) / steps;
  const shown = [...requests.values()].filter(({ step, ends, end }) => step <= now && !(end <= first)),
    most = Math.floor((H - foot) / 9);
  const queued = new Set(frame.waiting.slice(4).map(([id]) => id)); // the queue doesn't show them, either
  const lanes = (shown.length > most ? shown.filter(({ id }) => !queued.has(id)) : shown).slice(-most),
    h = Math.min(17, (H - foot) / Math.max(lanes.length, 1));
  canvas.setAttribute(
    "aria-label",
    `History of ${lanes.length} requests up to step ${now}; ${frame.running.length} run, ${frame.waiting.length} wait`,
  );
  g.font = "10px system-ui";
  for (let s = Math.ceil(first / 20) * 20; s <= now; s += 20) {
    g.fillStyle = token("--line");
    g.fillRect(left + (s - first) * w, 0, 1, H - foot);
    g.fillStyle = token("--soft");
    const x = left + (s - first) * w + 2,
      label = s ? `step ${s}` : "";
    if (x + g.measureText(label).width < W) g.fillText(label, x, H - 3);
  }
  lanes.forEach((request, lane) => {
    const { id, spans, marks } = request,
      [fill, , outline] = colors(id),
      y = lane * h;
    g.globalAlpha = view.follow && view.follow !== id ? 0.25 : 1;
    g.fillStyle = outline;
    if (h > 8) ((g.font = `bold ${Math.min(11, h - 1)}px system-ui`), g.fillText(id, 0, y + h - 2));
    for (const [kind, from, to] of spans) {
      const a = Math.max(from, first),
        b = Math.min(to, now);
      if (a >= b) continue;
      const [x, wide] = [left + (a - first) * w, (b - a) * w],
        bar = h > 5 ? h - 2 : h;
      g.fillStyle = kind === "decode" ? fill : outline;
      if (kind === "wait") g.fillRect(x, y + h / 2 - 1, wide, 1.5);
      else g.fillRect(x, y + 1, wide - (kind === "prefill" ? 0.5 : 0), bar);
      if (kind === "decode") ((g.fillStyle = outline), g.fillRect(x, y + 1 + bar - 1, wide, 1));
    }
    for (const [kind, when] of marks) {
      if (when <= first || when > now) continue;
      const x = left + (when - first - 0.5) * w,
        middle = y + h / 2;
      g.globalAlpha = 1;
      g.fillStyle = token(kind === "lost" ? "--bad" : "--key");
      g.beginPath();
      if (kind === "lost") (g.moveTo(x - 5, middle + 5), g.lineTo(x + 5, middle + 5), g.lineTo(x, middle - 5));
      else g.arc(x, middle, 3.5, 0, 7);
      g.fill();
      g.lineWidth = 1;
      g.strokeStyle = token("--panel");
      g.stroke();
    }
    hit(0, y, W, h, { id, from: 0, to: 0 });
  });
  g.globalAlpha = 1;
  g.fillStyle = token("--ink");
  g.fillRect(left + (now - first) * w, 0, 1.5, H - foot);
}
