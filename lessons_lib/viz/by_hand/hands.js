// What the pool and the mask that are driven by hand have in common: their place in a page, their look, and the keys.
import { unpacked } from "../player/player.js";

const COMMON_LOOK = `
  :host { display: block; max-width: 900px; container-type: inline-size; color-scheme: var(--lessons-scheme);
    --ink: light-dark(#1a1a1a, #e6e6e6); --soft: light-dark(#555, #b0b0b0); --edge: light-dark(#8a8a8a, #8f8f8f);
    --pale: light-dark(#ececE7, #333); --line: light-dark(#dcdcd7, #444); --ground: var(--lessons-ground);
    color: var(--jp-content-font-color1, CanvasText); font: 14px/1.45 Helvetica, Arial, "DejaVu Sans", sans-serif; }
  * { box-sizing: border-box; }
  .controls { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 2px 0 6px; }
  button, input[type="number"] { min-width: 40px; min-height: 32px; border: 1px solid #808080; border-radius: 6px;
    padding: 0 10px; background: transparent; color: inherit; font: inherit; }
  button { cursor: pointer; touch-action: manipulation; }
  button:disabled { opacity: 0.45; cursor: default; }
  input { accent-color: #2684C4; }
  label { display: inline-flex; gap: 6px; align-items: center; }
  :focus-visible { outline: 3px solid #2684C4; outline-offset: 2px; }
  .told { min-height: 22px; margin: 0 0 6px; } @container (max-width: 620px) { .told { min-height: 42px; } }
  .sheet { background: var(--ground); color: var(--ink); border-radius: 6px; padding: 12px; }
  .sheet h4 { margin: 0 0 6px; font-size: 12px; font-weight: normal; color: var(--soft); }
  .name { display: inline-block; min-width: 22px; padding: 0 5px; border-radius: 4px; text-align: center;
    font-weight: bold; background: var(--fill); color: var(--text); }
  .unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  @media (forced-colors: active) { .sheet { forced-color-adjust: none; } }
`;

/** An element whose script holds what it starts from, and whose still picture stands where no script runs. */
export class ByHand extends (globalThis.HTMLElement ?? Object) {
  /** @type {any} */
  given = null;

  async connectedCallback() {
    const source = this.querySelector("script");
    if (this.given || !source) return;
    this.given = {};
    this.given = await unpacked(source.textContent ?? "");
    this.root = this.attachShadow({ mode: "open" });
    this.build();
  }

  /** Fill the element. @param {string} look @param {string} markup */
  fill(look, markup) {
    /** @type {ShadowRoot} */ (this.root).innerHTML = `<style>${COMMON_LOOK}${look}</style>${markup}`;
  }

  build() {}

  /** @param {string} selector @returns {any} */
  part(selector) {
    return this.root?.querySelector(selector);
  }

  /** The colors of a request, as CSS: they follow the theme. @param {string} name */
  colors(name) {
    const [fill, text, own, darkFill, darkText, darkOwn] = this.given.colors[name];
    return (
      `--fill: light-dark(${fill}, ${darkFill}); --text: light-dark(${text}, ${darkText}); ` +
      `--own: light-dark(${own}, ${darkOwn})`
    );
  }
}

/**
 * Where an arrow key, Home or End leads in a grid that is filled row by row.
 * @param {string} key
 * @param {number} at
 * @param {number} across columns
 * @param {number} count cells
 * @returns {number} the cell; -1 for another key
 */
export function moved(key, at, across, count) {
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, Home: -at, End: count - 1 - at }[key];
  if (by === undefined) return -1;
  return at + by < 0 || at + by >= count ? at : at + by;
}

/** "1 token", "12 tokens". @param {number} n @param {string} noun */
export const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

/** "block 7", "blocks 3, 0 to 8", "no block"; in the given order. @param {string} noun @param {number[]} numbers */
export function numbered(noun, numbers) {
  /** @type {number[][]} */
  const runs = [];
  for (const number of numbers) {
    const last = runs.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  const words = runs.map(([first, last]) =>
    last > first + 1 ? `${first} to ${last}` : last > first ? `${first}, ${last}` : first,
  );
  return words.length ? `${noun}${numbers.length === 1 ? "" : "s"} ${words.join(", ")}` : `no ${noun}`;
}
