// <lessons-mask>: the mask of a packed row, changed by hand. Its rules are those of attention/masks.py.
import { ByHand, moved } from "./hands.js";

/** A token: its sequence, or -1 for padding, and its position in the sequence. @typedef {[number, number]} Token */
/** Where a sequence ends on an axis, and how many tokens it has. @typedef {{name: string, at: number, count: number}} End */

/** Whether a rule lets a query attend to a key; what one says where it does, and where it doesn't. */
export const RULES = /** @type {[string, string, (query: Token, key: Token) => boolean][]} */ ([
  ["not padding", "padding", (_, [key]) => key >= 0],
  ["same sequence", "another sequence", ([query], [key]) => query === key],
  ["not in the future", "in the future", ([, query], [, key]) => key <= query],
]);

/**
 * The tokens of a pass. Queries: all new tokens, then the padding; keys: all cached tokens, then the queries.
 * @param {number[]} lengths @param {number[]} cached @param {number} padding
 */
export function rowOf(lengths, cached, padding) {
  /** @param {number} count @param {number} seq @param {number} start @returns {Token[]} */
  const tokens = (count, seq, start) => Array.from({ length: count }, (_, i) => [seq, start + i]);
  const queries = [...lengths.flatMap((count, seq) => tokens(count, seq, cached[seq])), ...tokens(padding, -1, 0)];
  return { queries, keys: [...cached.flatMap((count, seq) => tokens(count, seq, 0)), ...queries] };
}

/** @param {Token} query @param {Token} key @param {boolean[]} on which rules apply */
export const may = (query, key, on) => RULES.every(([, , rule], i) => !on[i] || rule(query, key));

/** @param {Token} token @param {string[]} names */
const said = ([seq, at], names) => `${names[seq] ?? "padding"}, position ${at}`;

/** One cell in words. @param {Token} query @param {Token} key @param {boolean[]} on @param {string[]} names */
export function readCell(query, key, on, names) {
  const applied = RULES.filter((_, i) => on[i]),
    against = applied.filter(([, , rule]) => !rule(query, key));
  const telling = applied.length > 1 ? applied.filter(([words]) => words !== "not padding") : applied;
  const why = against.map(([, words]) => words).join(", ") || telling.map(([words]) => words).join(", ");
  const verb = against.length ? "may not" : "may";
  return `${said(query, names)}, ${verb} attend to ${said(key, names)}: ${why || "no rule forbids it"}.`;
}

/** A row in words. @param {Token} query @param {Token[]} keys @param {boolean[]} on @param {string[]} names */
export function readRow(query, keys, on, names) {
  /** @type {number[][]} */
  const runs = [];
  for (const [seq, at] of keys.filter((key) => may(query, key, on))) {
    const last = runs.at(-1);
    if (last && last[0] === seq && last[2] === at - 1) last[2] = at;
    else runs.push([seq, at, at]);
  }
  const words = runs.map(
    ([seq, first, last]) => `${names[seq] ?? "padding"} ${first}${last > first ? ` to ${last}` : ""}`,
  );
  return `${said(query, names)}, attends to ${words.join(", ") || "nothing"}.`;
}

/** Neighbors of one sequence: [sequence, first index, tokens]. @param {Token[]} tokens */
function runsOf(tokens) {
  /** @type {number[][]} */
  const runs = [];
  tokens.forEach(([seq], i) => (runs.at(-1)?.[0] === seq ? runs[runs.length - 1][2]++ : runs.push([seq, i, 1])));
  return runs;
}

/** All ends of one axis. @param {number[]} cached none, for the queries @param {number[]} lengths @param {number} padding */
export function endsOf(cached, lengths, padding) {
  let at = 0;
  const names = [...cached.map((_, i) => `cached ${i}`), ...lengths.map((_, i) => `new ${i}`), "padding 0"];
  return [...cached, ...lengths, padding].map((count, i) => ({ name: names[i], at: (at += count), count }));
}

/**
 * The ends at the place nearest to `at`. Sequences without tokens end where the one before them ends.
 * @param {End[]} ends @param {number} at
 */
export function nearest(ends, at) {
  const least = Math.min(...ends.map((end) => Math.abs(end.at - at)));
  return ends.filter((end) => Math.abs(end.at - at) === least);
}

/**
 * Which of the ends at one place follows the pointer: to the right the last of them, and to the left the last that has
 * a token to lose.
 * @param {End[]} ends @param {number} by tokens, not 0
 */
export const following = (ends, by) => ends.filter((end) => by > 0 || end.count > 0).at(-1);

const LEFT = 50,
  BAND = 20,
  TICKS = 16,
  FINGER = 24; // pixels: the letters and positions at the left, at the top; a grip
const WIDEST = 32,
  NARROWEST = 5,
  LOWEST = 14,
  DOTTED = 9; // of a cell; smaller ones have no dot
const MASK_LOOK = `
  .whole { display: grid; grid-template: "sheet knobs" auto / minmax(0, 1fr) 300px; gap: 6px 20px; }
  .knobs { grid-area: knobs; } .sheet { grid-area: sheet; align-self: start; }
  .sequence { display: grid; grid-template-columns: 24px 1fr 1fr; gap: 10px; min-height: 34px; align-items: center; }
  .sequence label { display: grid; grid-template-columns: auto minmax(0, 1fr) 18px; }
  .sequence input { width: 100%; min-width: 30px; } .rules { margin: 10px 0; } .rules label { display: flex; min-height: 30px; }
  @container (max-width: 700px) {
    .whole { grid-template: "knobs" "sheet" / minmax(0, 1fr); } .rules { display: flex; flex-wrap: wrap; gap: 0 16px; }
    .told { min-height: 62px; }
  }
  .sheet { overflow-x: auto; padding: 12px 10px; }
  svg { display: block; font-size: 11px; touch-action: pan-y; } svg:focus-visible { outline-offset: 6px; }
  .band { fill: var(--fill, var(--pale)); } .letter { fill: var(--text, var(--ink)); font-weight: bold; font-size: 12px; text-anchor: middle; }
  .tick { fill: var(--soft); } .may { fill: var(--fill, var(--edge)); }
  .dots { fill: none; stroke: var(--text, var(--ink)); stroke-linecap: round; }
  .grid { fill: none; stroke: var(--line); } .bounds { fill: none; stroke: var(--edge); }
  .cache { stroke: var(--ink); stroke-width: 2; } .cross { fill: none; stroke: var(--ink); stroke-width: 1.5; }
  .rim { fill: none; stroke: var(--ground); stroke-width: 4; } .row { fill: none; stroke: var(--ink); stroke-width: 1.5; }
  .cell { fill: none; stroke: var(--ink); stroke-width: 3; }
  .grip rect { fill: var(--ground); stroke: var(--ink); stroke-width: 1.5; }
  .grip .finger { fill: transparent; stroke: none; }
  .x { cursor: ew-resize; } .y { cursor: ns-resize; } .grip { touch-action: none; }
`;

class LessonsMask extends ByHand {
  cell = [0, 0]; // row and column of the cell that is read
  /** @type {{queries: Token[], keys: Token[]}} */
  row = { queries: [], keys: [] };

  build() {
    const { names, lengths, cached, longest, padding } = this.given;
    /** @param {string} words @param {string} name @param {number} value @param {number} most @param {string} label */
    const slider = (words, name, value, most, label) => `<label><span>${words}</span>
      <input type="range" name="${name}" min="0" max="${most}" value="${value}" aria-label="${label}"><output></output></label>`;
    this.fill(
      MASK_LOOK,
      `<div class="whole"><div class="knobs"><div role="group" aria-label="the tokens of each sequence">${names
        .map(
          (/** @type {string} */ name, /** @type {number} */ i) =>
            `<div class="sequence"><b class="name" style="${this.colors(name)}">${name}</b>
        ${slider("new", `new ${i}`, lengths[i], longest, `new tokens of ${name}`)}
        ${slider("cached", `cached ${i}`, cached[i], longest, `cached tokens of ${name}`)}</div>`,
        )
        .join("")}
      <div class="sequence"><b class="name" style="--fill: var(--pale); --text: var(--ink)">–</b>
        ${slider("padding", "padding 0", 0, padding, "padding tokens at the end of the row")}</div></div>
      <div class="rules" role="group" aria-label="rules">a query may attend to a key that is: ${RULES.map(
        ([words]) => `<label><input type="checkbox" checked>${words}</label>`,
      ).join("")}</div>
      <p class="told" role="status"></p></div>
      <div class="sheet"><svg role="application" tabindex="0"></svg></div></div>`,
    );
    this.part(".knobs").addEventListener("input", () => this.draw());
    const svg = (this.svg = this.part("svg"));
    svg.onkeydown = (/** @type {KeyboardEvent} */ event) => {
      const { queries, keys } = this.row,
        [row, column] = this.cell,
        isAcross = /Left|Right|Home|End/.test(event.key);
      const to = isAcross ? moved(event.key, column, 1, keys.length) : moved(event.key, row, 1, queries.length);
      const down = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (to < 0 && !down) return;
      event.preventDefault();
      this.read(isAcross ? row : Math.max(0, Math.min(queries.length - 1, row + (down ?? 0))), isAcross ? to : column);
    };
    svg.onpointerdown = (/** @type {PointerEvent} */ event) => this.take(event);
    svg.onpointermove = (/** @type {PointerEvent} */ event) => this.move(event);
    for (const kind of ["pointerup", "pointercancel"]) svg.addEventListener(kind, () => (this.held = null));
    this.cell = [...this.given.cell];
    new ResizeObserver(() => this.draw()).observe(this.part(".sheet"));
  }

  /** The numbers at the sliders. @param {string} kind */
  counts(kind) {
    const sliders = /** @type {NodeListOf<HTMLInputElement>} */ (this.root?.querySelectorAll(`[name^="${kind} "]`));
    return [...sliders].map(({ value }) => Number(value));
  }

  /** Which rules apply. @returns {boolean[]} */
  get on() {
    return [...this.part(".rules").querySelectorAll("input")].map(({ checked }) => checked);
  }

  draw() {
    for (const slider of this.root?.querySelectorAll("input[type=range]") ?? [])
      /** @type {any} */ (slider.nextElementSibling).value = /** @type {any} */ (slider).value;
    const [lengths, cached, [padding]] = ["new", "cached", "padding"].map((kind) => this.counts(kind));
    const { queries, keys } = (this.row = rowOf(lengths, cached, padding)),
      { names } = this.given,
      { on } = this;
    const sheet = this.part(".sheet"),
      room = sheet.clientWidth - 20 - LEFT - 6;
    const wide = Math.max(NARROWEST, Math.min(WIDEST, Math.floor(room / Math.max(keys.length, 1))));
    const high = Math.max(wide, Math.min(LOWEST, Math.floor(560 / Math.max(queries.length, 1))));
    const numCached = keys.length - queries.length,
      top = BAND + TICKS + (numCached ? 16 : 0);
    const [W, H] = [keys.length * wide, queries.length * high];
    Object.assign(this, { wide, high, top });
    /** @param {number} seq */
    const style = (seq) => (names[seq] ? this.colors(names[seq]) : "");
    /** @type {string[]} */
    const out = [];
    if (numCached) {
      out.push(
        `<text class="tick" x="${LEFT}" y="11">cached</text><text class="tick" x="${LEFT + numCached * wide + 4}" y="11">new</text>`,
      );
    }
    out.push(
      `<text class="tick" x="${LEFT - 6}" y="${top - TICKS - 6}" text-anchor="end">key →</text><text class="tick" x="0" y="${top - 5}">query ↓</text>`,
    );
    for (const [tokens, isAcross] of /** @type {[Token[], boolean][]} */ ([
      [keys, true],
      [queries, false],
    ])) {
      const size = isAcross ? wide : high,
        every = Math.ceil((isAcross ? 20 : 12) / size);
      for (const [seq, start, count] of runsOf(tokens)) {
        const [x, y, w, h] = isAcross
          ? [LEFT + start * wide, top - TICKS - BAND, count * wide, BAND]
          : [0, top + start * high, BAND + 2, count * high];
        const letter =
          count * size >= 10
            ? `<text class="letter" x="${x + w / 2}" y="${y + h / 2 + 4}">${names[seq] ?? "–"}</text>`
            : "";
        out.push(
          `<g style="${style(seq)}"><rect class="band" x="${x + 0.5}" y="${y + 0.5}" width="${w - 1}" height="${h - 1}"/>${letter}</g>`,
        );
      }
      tokens.forEach(([seq, at], i) => {
        const isFirst = tokens[i - 1]?.[0] !== seq,
          isNear = tokens.slice(Math.max(0, i - every + 1), i + every).some(([other]) => other !== seq);
        if (!isFirst && (isNear || at % every)) return;
        out.push(
          isAcross
            ? `<text class="tick" x="${LEFT + (i + 0.5) * wide}" y="${top - 4}" text-anchor="middle">${at}</text>`
            : `<text class="tick" x="${LEFT - 6}" y="${top + (i + 0.5) * high + 4}" text-anchor="end">${at}</text>`,
        );
      });
    }
    let [seen, wrong, crosses] = [0, 0, ""];
    /** @type {Map<number, [string, string]>} */
    const paths = new Map();
    queries.forEach((query, r) =>
      keys.forEach((key, c) => {
        if (!may(query, key, on)) return;
        seen++;
        const [x, y] = [LEFT + c * wide, top + r * high],
          [fills, dots] = paths.get(query[0]) ?? ["", ""];
        paths.set(query[0], [
          `${fills}M${x} ${y}h${wide}v${high}h-${wide}z`,
          `${dots}M${x + wide / 2} ${y + high / 2}h.1`,
        ]);
        if (
          may(
            query,
            key,
            RULES.map(() => true),
          )
        )
          return;
        wrong++;
        crosses += `M${x + 0.25 * wide} ${y + 0.25 * high}l${wide / 2} ${high / 2}m0 -${high / 2}l-${wide / 2} ${high / 2}`;
      }),
    );
    for (const [seq, [fills, dots]] of paths)
      out.push(
        `<g style="${style(seq)}"><path class="may" d="${fills}"/>${wide >= DOTTED ? `<path class="dots" stroke-width="${wide / 5}" d="${dots}"/>` : ""}</g>`,
      );
    /** @param {number[]} across @param {number[]} down */
    const lines = (across, down) =>
      across.map((r) => `M${LEFT} ${top + r * high}h${W}`).join("") +
      down.map((c) => `M${LEFT + c * wide} ${top}v${H}`).join("");
    /** @param {Token[]} tokens */
    const bounds = (tokens) => [...runsOf(tokens).map(([, start]) => start), tokens.length];
    out.push(
      `<path class="grid" stroke-width="${wide < 10 ? 0.5 : 1}" d="${lines([...queries.keys()], [...keys.keys()])}"/>`,
    );
    out.push(`<path class="bounds" d="${lines(bounds(queries), bounds(keys))}"/>`);
    if (numCached) out.push(`<path class="cache" d="M${LEFT + numCached * wide} 0V${top + H}"/>`);
    if (crosses) out.push(`<path class="rim" d="${crosses}"/><path class="cross" d="${crosses}"/>`);
    for (const { name, at } of endsOf(cached, lengths, padding)) {
      const x = LEFT + at * wide,
        y = top - TICKS - BAND;
      out.push(`<g class="grip x" data-end="${name}"><rect x="${x - 3}" y="${y - 2}" width="6" height="${BAND + 4}" rx="3"/>
        <rect class="finger" x="${x - FINGER / 2}" y="${y - 2}" width="${FINGER}" height="${BAND + TICKS}"/></g>`);
    }
    for (const { name, at } of endsOf([], lengths, padding)) {
      const y = top + at * high;
      out.push(`<g class="grip y" data-end="${name}"><rect x="-2" y="${y - 3}" width="${BAND + 6}" height="6" rx="3"/>
        <rect class="finger" x="-2" y="${y - FINGER / 2}" width="${LEFT - 2}" height="${FINGER}"/></g>`);
    }
    this.svg.innerHTML = `${out.join("")}<rect class="row"/><rect class="cell"/>`;
    const [width, height] = [LEFT + W + 8, top + H + 8];
    for (const [name, value] of Object.entries({ width, height, viewBox: `-4 -4 ${width + 4} ${height + 4}` }))
      this.svg.setAttribute(name, value);
    const cells = queries.length * keys.length;
    this.counted =
      `${seen} of ${cells} cells may attend${cells ? ` (${Math.round((100 * seen) / cells)} %)` : ""}` +
      (wrong ? `; ${wrong} of them shouldn't (×)` : "");
    this.read(Math.min(this.cell[0], queries.length - 1), Math.min(this.cell[1], keys.length - 1));
  }

  /** Frame a row and a cell, and say what they mean. @param {number} row @param {number} column */
  read(row, column) {
    const { queries, keys } = this.row,
      { names } = this.given,
      { on, wide = 0, high = 0, top = 0 } = /** @type {any} */ (this);
    let words = "There are no new tokens, so there are no queries and no mask. Give a sequence a new token.";
    if (queries.length) {
      this.cell = [Math.max(0, row), Math.max(0, column)];
      const [query, key] = [queries[this.cell[0]], keys[this.cell[1]]];
      words = `${this.counted}. ${readRow(query, keys, on, names)} ${readCell(query, key, on, names)}`;
      const y = top + this.cell[0] * high,
        x = LEFT + this.cell[1] * wide;
      /** @param {string} name @param {Record<string, number>} place */
      const frame = (name, place) => Object.entries(place).forEach((each) => this.part(name).setAttribute(...each));
      frame(".row", { x: LEFT - 1, y: y - 1, width: keys.length * wide + 2, height: high + 2 });
      frame(".cell", { x, y, width: wide, height: high });
    }
    this.part(".told").textContent = words;
    this.svg.setAttribute(
      "aria-label",
      `Mask of ${queries.length} queries and ${keys.length} keys. ${words} Arrow keys move the frame.`,
    );
  }

  /** Where the pointer is, in pixels of the picture. @param {PointerEvent} event */
  pointAt(event) {
    const box = this.svg.getBoundingClientRect();
    return [event.clientX - box.left - 4, event.clientY - box.top - 4];
  }

  /** @param {PointerEvent} event */
  take(event) {
    const grip = /** @type {Element} */ (event.target).closest("[data-end]");
    if (!grip || event.button) return this.move(event);
    const { wide = 1, high = 1, top = 0 } = /** @type {any} */ (this),
      isAcross = grip.classList.contains("x");
    const [lengths, cached, [padding]] = ["new", "cached", "padding"].map((kind) => this.counts(kind));
    const [x, y] = this.pointAt(event),
      size = isAcross ? wide : high;
    const ends = endsOf(isAcross ? cached : [], lengths, padding);
    this.held = {
      isAcross,
      from: isAcross ? x : y,
      size,
      ends: nearest(ends, isAcross ? (x - LEFT) / wide : (y - top) / high),
    };
    this.svg.setPointerCapture(event.pointerId); // the grip itself is gone as soon as the picture is drawn again
    event.preventDefault();
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { held, wide = 1, high = 1, top = 0 } = /** @type {any} */ (this),
      [x, y] = this.pointAt(event);
    if (!held) {
      const [row, column] = [Math.floor((y - top) / high), Math.floor((x - LEFT) / wide)];
      if (this.row.queries[row] && this.row.keys[column] && x > LEFT && String([row, column]) !== String(this.cell))
        this.read(row, column);
      return;
    }
    const by = Math.round(((held.isAcross ? x : y) - held.from) / held.size);
    if (by) held.end ??= following(held.ends, by);
    if (!held.end) return;
    const slider = this.part(`[name="${held.end.name}"]`),
      value = String(Math.max(0, Math.min(Number(slider.max), held.end.count + by)));
    if (slider.value === value) return;
    slider.value = value;
    this.draw();
  }
}

if (globalThis.customElements && !customElements.get("lessons-mask"))
  customElements.define("lessons-mask", LessonsMask);
