// <lessons-pool>: a block pool, driven by hand. Its rules are those of kv_cache/block_pool.py and block_table.py.
import { ByHand, counted, moved, numbered } from "./hands.js";

/** @typedef {{blocks: number[], tokens: number}} Table */

export class Pool {
  /** @type {Map<string, Table>} */
  tables = new Map();

  /** @param {number} count @param {number} size */
  constructor(count, size) {
    [this.count, this.size, this.queue] = [count, size, [...Array(count).keys()]];
  }

  /**
   * Both say what has happened, in words, and which blocks changed their owner.
   * @param {string} name @param {number} count @returns {[string, number[]]}
   */
  append(name, count) {
    const table = this.tables.get(name) ?? { blocks: [], tokens: 0 };
    const needed = Math.ceil((table.tokens + count) / this.size) - table.blocks.length;
    if (needed > this.queue.length)
      return [
        `OutOfBlocks: ${counted(needed, "block")} needed, ${this.queue.length} free of ${this.count}. Nothing was allocated.`,
        [],
      ];
    const taken = this.queue.splice(0, needed),
      does = this.tables.has(name) ? "grows" : "arrives";
    this.tables.set(name, { blocks: [...table.blocks, ...taken], tokens: table.tokens + count });
    const takes = taken.length ? `${does} and takes ${numbered("block", taken)}` : "needs no new block";
    return [`${name}, now ${counted(table.tokens + count, "token")}, ${takes}.`, taken];
  }

  /** @param {string} name @returns {[string, number[]]} */
  free(name) {
    const blocks = this.tables.get(name)?.blocks;
    if (!blocks) return [`${name} owns no blocks: there is nothing to free. Append tokens to it first.`, []];
    this.tables.delete(name);
    this.queue.push(...blocks.toReversed()); // so that a request's tail is reallocated before its beginning
    return [`${name} frees ${numbered("block", blocks)}, and its last block joins the queue first.`, blocks];
  }

  /** How many tokens the request at a place of its table has in that block. @param {Table} table @param {number} place */
  stored(table, place) {
    return Math.max(0, Math.min(this.size, table.tokens - place * this.size));
  }

  /** Block -> the request that has it, and the place in its table. */
  owners() {
    /** @type {Map<number, [string, number]>} */
    const owners = new Map();
    for (const [name, { blocks }] of this.tables) blocks.forEach((block, place) => owners.set(block, [name, place]));
    return owners;
  }

  /** A block in words. @param {number} block */
  words(block) {
    const [name, place] = this.owners().get(block) ?? [],
      table = this.tables.get(name ?? "");
    if (!table || place === undefined)
      return `block ${block}: free, number ${this.queue.indexOf(block) + 1} in the queue`;
    const count = this.stored(table, place),
      first = place * this.size,
      empty = this.size - count;
    const positions = count === 1 ? `position ${first}` : `positions ${first} to ${first + count - 1}`;
    return `block ${block}: ${name}, ${positions}${empty ? `, ${counted(empty, "slot")} unused` : ""}`;
  }

  sums() {
    const used = this.count - this.queue.length,
      slots = used * this.size;
    const empty = slots - [...this.tables.values()].reduce((sum, { tokens }) => sum + tokens, 0);
    const told = `${used} of ${counted(this.count, "block")} allocated`;
    return slots
      ? `${told}; ${empty} of ${counted(slots, "slot")} in them empty (${Math.round((100 * empty) / slots)} %)`
      : told;
  }
}

const POOL_LOOK = `
  .sheet { display: grid; gap: 14px 24px; grid-template: "lot tables" auto "queue tables" 1fr / minmax(0, 3fr) minmax(0, 2fr); }
  .lot { grid-area: lot; } .tables { grid-area: tables; min-height: 250px; } .queue { grid-area: queue; }
  .lot div { display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 8px; }
  .block { display: block; position: relative; width: 100%; min-height: 58px; padding: 3px 6px 6px; border: 1px solid var(--own, var(--edge));
    background: none; color: var(--ink); font-size: 12px; text-align: left; }
  .block b { float: right; }
  .slots { display: flex; clear: both; gap: 2px; }
  .slots i { flex: 1; height: 22px; border: 1px solid var(--own, var(--line)); border-radius: 2px; }
  .owned .slots i { background: repeating-linear-gradient(45deg, transparent 0 4px, var(--own) 4px 5px); }
  .slots i.full { background: var(--fill); }
  .changed { outline: 3px solid var(--ink); outline-offset: -2px; }
  .lot p { margin: 8px 0 0; min-height: 20px; font-size: 12px; color: var(--soft); }
  .chips { display: flex; flex-wrap: wrap; gap: 4px; align-items: center; }
  .chip { min-width: 26px; padding: 0 4px; border: 1px solid var(--own, var(--edge)); border-radius: 4px; text-align: center;
    font-size: 12px; font-weight: bold; background: var(--fill, none); color: var(--text, var(--ink)); }
  .table { margin: 0 0 10px; }
  .table small, .sums { font-size: 12px; color: var(--ink); }
  .sums { grid-column: 1 / -1; margin: 0; font-weight: bold; }
  .names { display: flex; gap: 4px; }
  .names button { padding: 0 9px; border: 2px solid var(--own); font-weight: bold; }
  .names [aria-checked="true"] { background: var(--fill); color: var(--text); }
  input { width: 64px; }
  @container (max-width: 620px) {
    .sheet { grid-template: "lot" "queue" "tables" / minmax(0, 1fr); }
    .lot div { grid-template-columns: repeat(auto-fill, minmax(72px, 1fr)); gap: 6px; } .tables { min-height: 150px; }
  }
`;
const NAMES = ["A", "B", "C", "D", "E", "F"],
  MOVE_MS = 300;

class LessonsPool extends ByHand {
  pool = new Pool(0, 1);
  chosen = "A";
  at = 0; // the block that the keys are on

  build() {
    this.fill(
      POOL_LOOK,
      `
      <div class="controls" role="group" aria-label="what happens to the pool">
        <span class="names" role="radiogroup" aria-label="request"></span>
        <label>tokens <input type="number" min="1" max="99" value="5"></label>
        <button data-act="append">append</button><button data-act="free">free</button>
        <button data-act="again">start again</button>
      </div>
      <p class="told" role="status"></p>
      <div class="sheet">
        <section class="lot"><h4></h4><div></div><p></p></section>
        <section class="queue"><h4></h4><div class="chips"></div></section>
        <section class="tables"><h4>block tables, in the order of the tokens</h4><div></div></section>
        <p class="sums"></p>
      </div>`,
    );
    const { blocks, size } = this.given;
    this.part(".lot h4").textContent =
      `${counted(blocks, "block")} of ${counted(size, "slot")}; a slot has room for one token`;
    this.part(".names").innerHTML = NAMES.map(
      (name) => `<button role="radio" data-name="${name}" style="${this.colors(name)}">${name}</button>`,
    ).join("");
    this.part(".lot div").innerHTML = [...Array(blocks).keys()]
      .map(
        (block) =>
          `<button class="block" data-block="${block}"><span aria-hidden="true"><b></b>${block}<span class="slots">${"<i></i>".repeat(size)}</span></span><span class="unseen"></span></button>`,
      )
      .join("");
    const root = /** @type {ShadowRoot} */ (this.root);
    root.addEventListener("click", ({ target }) => this.clicked(/** @type {HTMLElement} */ (target)));
    this.part(".names").onkeydown = (/** @type {KeyboardEvent} */ event) => {
      const to = moved(
        event.key.replace("Up", "Left").replace("Down", "Right"),
        NAMES.indexOf(this.chosen),
        1,
        NAMES.length,
      );
      if (to < 0) return;
      event.preventDefault();
      this.choose(NAMES[to]);
      this.part(`[data-name=${this.chosen}]`).focus();
    };
    const lot = this.part(".lot div");
    lot.onkeydown = (/** @type {KeyboardEvent} */ event) => {
      const across = [...lot.children].filter((each) => each.offsetTop === lot.firstChild.offsetTop).length;
      const to = moved(event.key, this.at, across, blocks);
      if (to < 0) return;
      event.preventDefault();
      this.reach(to);
      lot.children[to].focus();
    };
    for (const kind of ["pointerover", "focusin"])
      lot.addEventListener(kind, (/** @type {Event} */ { target }) => {
        const block = /** @type {HTMLElement} */ (target).closest("[data-block]");
        if (block instanceof HTMLElement)
          this.part(".lot p").textContent = this.pool.words(Number(block.dataset.block));
      });
    this.part("input").onkeydown = (/** @type {KeyboardEvent} */ { key }) => {
      if (key === "Enter") this.act("append"); // returning false would swallow the key
    };
    this.choose("A");
    this.act("again");
    this.reach(0);
  }

  /** @param {HTMLElement} target */
  clicked(target) {
    const { act, name } = target.dataset,
      block = /** @type {any} */ (target.closest("[data-block]"))?.dataset.block;
    if (act) this.act(act);
    if (name) this.choose(name);
    if (block === undefined) return;
    this.reach(Number(block));
    const [owner] = this.pool.owners().get(Number(block)) ?? [];
    if (owner) this.choose(owner);
  }

  /** @param {string} name */
  choose(name) {
    this.chosen = name;
    for (const button of this.part(".names").children) {
      button.setAttribute("aria-checked", String(button.dataset.name === name));
      button.tabIndex = button.dataset.name === name ? 0 : -1;
    }
  }

  /** One block is in the order of the Tab key; arrows lead to the others. @param {number} block */
  reach(block) {
    this.at = block;
    [...this.part(".lot div").children].forEach((each, number) => (each.tabIndex = number === block ? 0 : -1));
  }

  /** @param {string} what */
  act(what) {
    const count = Number(this.part("input").value),
      { blocks, size, calls } = this.given;
    /** @type {[string, number[]]} */
    let outcome = ["Choose a request and a number of tokens, then append.", []];
    if (what === "again") {
      this.pool = new Pool(blocks, size);
      for (const [name, tokens] of calls) tokens ? this.pool.append(name, tokens) : this.pool.free(name);
    } else if (what === "free") outcome = this.pool.free(this.chosen);
    else if (count < 1 || !Number.isInteger(count)) outcome = ["Append a whole number of tokens, at least 1.", []];
    else outcome = this.pool.append(this.chosen, count);
    this.part(".told").textContent = outcome[0];
    this.part(".lot p").textContent = "";
    this.draw(outcome[1]);
  }

  /** @param {number[]} changed */
  draw(changed) {
    const { pool } = this,
      owners = pool.owners(),
      before = this.places();
    for (const box of this.part(".lot div").children) {
      const block = Number(box.dataset.block),
        [name, place] = owners.get(block) ?? [],
        table = pool.tables.get(name ?? "");
      box.className = `block ${name ? "owned" : ""} ${changed.includes(block) ? "changed" : ""}`;
      box.style.cssText = name ? this.colors(name) : "";
      box.lastChild.textContent = pool.words(block);
      box.querySelector("b").textContent = name ?? "";
      const stored = table ? pool.stored(table, place ?? 0) : 0;
      [...box.querySelectorAll("i")].forEach((slot, offset) => (slot.className = offset < stored ? "full" : ""));
    }
    /** @param {number} block */
    const chip = (block) =>
      `<span class="chip ${changed.includes(block) ? "changed" : ""}" data-chip="${block}">${block}</span>`;
    const free = counted(pool.queue.length, "block");
    this.part(".queue h4").textContent = pool.queue.length
      ? `free queue, ${free}: ${pool.queue[0]} is allocated next; freed blocks join the end`
      : "free queue: empty";
    this.part(".queue div").innerHTML = pool.queue.map(chip).join("");
    this.part(".tables div").innerHTML = [...pool.tables]
      .map(
        ([name, { blocks, tokens }]) =>
          `<div class="table" style="${this.colors(name)}"><div class="chips"><b class="name">${name}</b>${blocks.map(chip).join("")}</div>
        <small>${counted(tokens, "token")}, ${blocks.length * pool.size - tokens} unused</small></div>`,
      )
      .join("");
    this.part(".sums").textContent = `${pool.sums()}.`;
    this.glide(before);
  }

  /** Where each block's chip is, in the queue or in a table. */
  places() {
    const chips = /** @type {NodeListOf<HTMLElement>} */ (this.root?.querySelectorAll("[data-chip]"));
    return new Map([...chips].map((chip) => [chip.dataset.chip, chip.getBoundingClientRect()]));
  }

  /** A chip that has changed its place comes from there. @param {Map<string | undefined, DOMRect>} before */
  glide(before) {
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
    const chips = /** @type {NodeListOf<HTMLElement>} */ (this.root?.querySelectorAll("[data-chip]"));
    for (const chip of chips) {
      const from = before.get(chip.dataset.chip),
        to = chip.getBoundingClientRect();
      if (from)
        chip.animate([{ transform: `translate(${from.x - to.x}px, ${from.y - to.y}px)` }, {}], {
          duration: MOVE_MS,
          easing: "ease-out",
        });
    }
  }
}

if (globalThis.customElements && !customElements.get("lessons-pool"))
  customElements.define("lessons-pool", LessonsPool);
