// Plays a recording of pictures (frames.py) without a kernel: <lessons-player> holds its data, compressed JSON, and a
// still picture for where no script runs.

/**
 * @typedef {object} Recording
 * @property {number} width
 * @property {number[]} heights
 * @property {string} defs
 * @property {string[]} elements
 * @property {number[][][]} changes
 * @property {string[]} alts
 * @property {string[]} names
 * @property {string} label
 * @property {number} start
 */

const SVG = "http://www.w3.org/2000/svg";
const WHOLE_RUN_MS = 12000; // so long a run takes at normal speed, if its steps are neither too short nor too long
const SHORTEST_MS = 50;
const LONGEST_MS = 800;
const GLIDE_MS = 280; // so long something takes to its new place
const LEAST_GLIDE = 4; // pixels; less is no movement
const MOST_HEIGHT = 556; // pixels; with the controls, a picture fits into a window of 800. A taller one shrinks.
const LEAST_WIDTH = 820; // its smallest text is 10 px there. In a narrower place a picture scrolls.

// The page's theme: JupyterLab says it at its body, the website at its root, another page not at all. Python draws each
// picture once, in light colors, and writes style rules that exchange them where --lessons-night is empty; where it is
// invalid, they keep them (night.py). Charts of matplotlib get a filter.
const NIGHT = "--lessons-scheme: dark; --lessons-night: ; --lessons-filter: invert(0.88) hue-rotate(180deg);" +
  " --lessons-ground: #1f1f1f;";
const DAY = "--lessons-scheme: light; --lessons-night: initial; --lessons-filter: none; --lessons-ground: #fdfdfb;";
const THEME = `
  :root { ${DAY} }
  @media (prefers-color-scheme: dark) { :root { ${NIGHT} } }
  [data-theme="light"], [data-jp-theme-light="true"] { ${DAY} }
  [data-theme="dark"], [data-jp-theme-light="false"] { ${NIGHT} }
  img.lessons-picture { color-scheme: var(--lessons-scheme); }
  svg.lessons-chart { filter: var(--lessons-filter); }
`;

const STYLE = `
  :host { display: block; max-width: 900px; container-type: inline-size;
    color: var(--jp-content-font-color1, CanvasText); color-scheme: var(--lessons-scheme); }
  .controls { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 2px 0 6px;
    font: 14px/1.4 sans-serif; }
  button, select { min-width: 40px; min-height: 32px; border: 1px solid #808080; border-radius: 6px;
    background: transparent; color: inherit; font: inherit; cursor: pointer; touch-action: manipulation; }
  option { color: CanvasText; background: Canvas; }
  button:disabled, input:disabled { opacity: 0.45; cursor: default; }
  input { flex: 1 1 160px; min-width: 120px; height: 32px; accent-color: #2684C4; }
  output { min-width: 110px; overflow-wrap: anywhere; }
  :focus-visible { outline: 3px solid #2684C4; outline-offset: 2px; }
  .sheet { overflow: auto; background: var(--lessons-ground); border-radius: 6px;
    animation: fades linear; animation-timeline: scroll(self inline); } /* at an edge where the picture goes on */
  @keyframes fades { from, 98% { mask-image: linear-gradient(to left, transparent, #000 2em); } to { mask-image: none } }
  svg { display: block; width: 100%; min-width: ${LEAST_WIDTH}px; }
  svg.follows [data-link]:not(.lit, [opacity]) { opacity: 0.22; }
  .lit { opacity: 1; }
  @media (forced-colors: active) { svg { forced-color-adjust: none; } }
`;

/**
 * @param {string} packed JSON, compressed, in base64
 * @returns {Promise<any>}
 */
export async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed.trim()), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

/**
 * The elements of every picture, as numbers.
 * @param {number[][][]} changes
 * @returns {number[][]}
 */
export function expanded(changes) {
  /** @type {number[]} */
  let now = [];
  return changes.map((splices) => {
    now = now.slice();
    for (const [where, gone, ...come] of splices) now.splice(where, gone, ...come);
    return now;
  });
}

/**
 * How many elements two lists have in common at their beginnings, and behind that at their ends.
 * @param {number[]} a
 * @param {number[]} b
 * @returns {[number, number]}
 */
export function common(a, b) {
  const most = Math.min(a.length, b.length);
  let first = 0;
  while (first < most && a[first] === b[first]) first++;
  let last = 0;
  while (last < most - first && a[a.length - 1 - last] === b[b.length - 1 - last]) last++;
  return [first, last];
}

/**
 * What makes one list of another: the places of what goes, and what comes, each [number, the place before which it is].
 * It may be more than necessary where numbers change their order.
 * @param {number[]} shown
 * @param {number[]} wanted
 * @returns {{gone: number[], come: [number, number][]}}
 */
export function exchanges(shown, wanted) {
  /** @type {Map<number, number>} */
  const ahead = new Map();
  for (const number of wanted) ahead.set(number, (ahead.get(number) ?? 0) + 1);
  /** @type {number[]} */
  const gone = [];
  /** @type {[number, number][]} */
  const come = [];
  let place = 0;
  for (const number of wanted) {
    while (place < shown.length && !ahead.get(shown[place])) gone.push(place++);
    ahead.set(number, (ahead.get(number) ?? 0) - 1);
    if (shown[place] === number) place++;
    else come.push([number, place]);
  }
  while (place < shown.length) gone.push(place++);
  return { gone, come };
}

/**
 * Milliseconds between two steps at normal speed.
 * @param {number} count
 */
export function stepMs(count) {
  return Math.min(LONGEST_MS, Math.max(SHORTEST_MS, WHOLE_RUN_MS / Math.max(count, 1)));
}

/**
 * Whether something with these names, separated by spaces, is lit for a reader that follows `wanted`.
 * @param {string} links
 * @param {string} wanted
 */
export function isLit(links, wanted) {
  return links.split(" ").some((link) => link === wanted || link.startsWith(`${wanted}/`));
}

/**
 * What can be followed: the first part of each name in these elements, once, in order.
 * @param {string[]} elements
 * @returns {string[]}
 */
export function namesIn(elements) {
  const links = elements.flatMap((element) => [...element.matchAll(/ data-link="([^"]*)"/g)].map((found) => found[1]));
  const names = links.flatMap((link) => link.split(" ")).map((link) => link.split("/")[0]);
  return [...new Set(names)].sort();
}

/**
 * Where a rectangle or a text is drawn. Its attributes say so, and a browser needn't lay out the picture for them.
 * @param {Element} node
 * @returns {[number, number]}
 */
function placeOf(node) {
  return [Number(node.getAttribute("x")), Number(node.getAttribute("y"))];
}

/**
 * Where everything is that may move, by its name.
 * @param {any[]} nodes
 * @returns {Map<string, [number, number][]>}
 */
function placesOf(nodes) {
  const places = new Map();
  for (const node of nodes) {
    const name = node.dataset.moves;
    if (name) places.set(name, [...(places.get(name) ?? []), placeOf(node)]);
  }
  return places;
}

class LessonsPlayer extends (globalThis.HTMLElement ?? Object) {
  isStarted = false;
  /** @type {Recording} */
  data = { width: 0, heights: [], defs: "", elements: [], changes: [], alts: [], names: [], label: "", start: 0 };
  /** @type {number[][]} */
  pictures = [];
  /** @type {Element[]} */
  templates = [];
  /** @type {number[]} */
  shown = [];
  at = 0;
  follows = ""; // a name of what is shown, or ""
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer = undefined;

  async connectedCallback() {
    const source = this.querySelector("script");
    if (this.isStarted || !source) return;
    this.isStarted = true;
    this.data = await unpacked(source.textContent ?? "");
    this.pictures = expanded(this.data.changes);
    this.build(this.attachShadow({ mode: "open" }));
    this.show(this.data.start);
  }

  disconnectedCallback() {
    this.pause();
  }

  /** @param {ShadowRoot} root */
  build(root) {
    const { label, width, heights, defs, night } = this.data;
    const last = this.pictures.length - 1;
    const tallest = Math.max(...heights);
    const height = `min(${MOST_HEIGHT}px, calc(max(100cqw, ${LEAST_WIDTH}px) * ${tallest / width}))`;
    const mostWidth = `max(${LEAST_WIDTH}px, ${(MOST_HEIGHT * width) / tallest}px)`; // as wide as its height allows
    root.innerHTML = `<style>${STYLE}${night}</style>
      <div class="controls" role="group">
        <button class="lessons-stepper-play"></button>
        <button class="lessons-stepper-previous">◀</button><button class="lessons-stepper-next">▶</button>
        <input type="range" min="0" max="${last}" step="1">
        <output class="lessons-stepper-position"></output>
        <select>
          <option value="0.5">slow</option><option value="1" selected>normal</option><option value="3">fast</option>
        </select>
        <select class="lessons-stepper-follow"></select>
      </div>
      <div class="sheet lessons-stepper-picture" role="region"><div style="height: ${height}">
        <svg role="img" style="max-width: ${mostWidth}"><defs>${defs}</defs><g font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif"></g></svg>
      </div></div>`;
    /** @param {string} selector @returns {any} */
    const part = (selector) => root.querySelector(selector);
    this.playButton = part(".lessons-stepper-play");
    this.previous = part(".lessons-stepper-previous");
    this.next = part(".lessons-stepper-next");
    this.range = part("input");
    this.status = part("output");
    this.speed = part("select");
    this.svg = part("svg");
    this.group = part("g");
    part(".sheet").tabIndex = 0; // so that keys can scroll it, where it is tall or the page narrow
    part(".sheet").setAttribute("aria-label", `picture of each ${label}`);
    part(".controls").setAttribute("aria-label", `controls of the picture, one ${label} after another`);
    this.previous.setAttribute("aria-label", `previous ${label}`);
    this.next.setAttribute("aria-label", `next ${label}`);
    this.range.setAttribute("aria-label", label);
    this.speed.setAttribute("aria-label", "speed");
    const controls = [this.playButton, this.previous, this.next, this.range, this.speed];
    for (const control of controls) control.disabled = last < 1;
    this.playButton.onclick = () => (this.timer ? this.pause() : this.play());
    this.previous.onclick = () => this.go(this.at - 1);
    this.next.onclick = () => this.go(this.at + 1);
    this.range.oninput = () => this.go(Number(this.range.value));
    this.offerNames(part(".lessons-stepper-follow"));
    this.pause();
  }

  /**
   * Follow a name by a choice, by a click, or for as long as the mouse is on something that has it.
   * @param {HTMLSelectElement} choice
   */
  offerNames(choice) {
    const names = namesIn(this.data.elements);
    if (names.length < 2) return choice.remove();
    choice.setAttribute("aria-label", "follow");
    choice.append(new Option("follow …", ""), ...names.map((name) => new Option(`follow ${name}`, name)));
    /** @param {any} target */
    const nameOf = (target) => target.closest?.("[data-link]")?.dataset.link.split(" ")[0] ?? "";
    /** @param {string} name */
    const follow = (name) => {
      this.follows = name;
      choice.value = name.split("/")[0];
      this.light(name);
    };
    choice.onchange = () => follow(choice.value);
    this.svg.onclick = (/** @type {MouseEvent} */ event) => {
      const name = nameOf(event.target);
      follow(name === this.follows ? "" : name);
    };
    this.svg.onpointerover = (/** @type {PointerEvent} */ event) => this.light(nameOf(event.target) || this.follows);
    this.svg.onpointerleave = () => this.light(this.follows);
  }

  /** @param {string} name */
  light(name) {
    this.svg.classList.toggle("follows", name !== "");
    for (const node of this.group.querySelectorAll("[data-link]")) {
      if (name !== "" && isLit(node.dataset.link, name)) node.classList.add("lit");
      else node.removeAttribute("class");
    }
  }

  /** Stop, and show another picture. @param {number} index */
  go(index) {
    this.pause();
    this.show(index);
  }

  play() {
    if (this.at >= this.pictures.length - 1) this.show(0);
    const tick = () => {
      this.show(this.at + 1);
      if (this.at >= this.pictures.length - 1) this.pause();
      else this.timer = setTimeout(tick, stepMs(this.pictures.length) / Number(this.speed.value));
    };
    this.timer = setTimeout(tick, stepMs(this.pictures.length) / Number(this.speed.value));
    this.label("❚❚", "pause");
    this.status.setAttribute("aria-live", "off"); // a screen reader can't follow
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = undefined;
    if (this.playButton) this.label("▶ play", "play");
    this.status?.setAttribute("aria-live", "polite");
  }

  /** @param {string} sign @param {string} words */
  label(sign, words) {
    this.playButton.textContent = sign;
    this.playButton.setAttribute("aria-label", words);
  }

  /** @param {number} index */
  show(index) {
    const { names, alts, width, heights } = this.data;
    const before = this.at;
    this.at = Math.min(Math.max(index, 0), this.pictures.length - 1);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${heights[this.at]}`);
    this.redraw(this.pictures[this.at], Math.abs(this.at - before) === 1);
    if (this.follows) this.light(this.follows);
    this.svg.setAttribute("aria-label", alts[this.at]);
    this.status.textContent = names[this.at];
    this.range.value = String(this.at);
    this.range.setAttribute("aria-valuetext", names[this.at]);
  }

  /**
   * Exchange what differs; the other elements stay as they are.
   * @param {number[]} wanted
   * @param {boolean} glides
   */
  redraw(wanted, glides) {
    const [first, last] = common(this.shown, wanted);
    const nodes = [...this.group.children];
    const { gone, come } = exchanges(
      this.shown.slice(first, this.shown.length - last),
      wanted.slice(first, wanted.length - last),
    );
    const leaving = gone.map((place) => nodes[first + place]);
    const places = glides && !matchMedia("(prefers-reduced-motion: reduce)").matches ? placesOf(leaving) : new Map();
    const arriving = come.map(([number, before]) => {
      const node = this.element(number);
      this.group.insertBefore(node, nodes[first + before] ?? null);
      return node;
    });
    for (const node of leaving) node.remove();
    this.glide(arriving, places);
    this.shown = wanted;
  }

  /**
   * What was elsewhere in the last picture comes from there.
   * @param {any[]} nodes
   * @param {Map<string, [number, number][]>} places
   */
  glide(nodes, places) {
    if (!places.size) return;
    const duration = this.timer ? Math.min(GLIDE_MS, stepMs(this.pictures.length) / Number(this.speed.value)) : GLIDE_MS;
    for (const node of nodes) {
      const from = places.get(node.dataset.moves)?.shift();
      if (!from) continue;
      const to = placeOf(node);
      const [x, y] = [from[0] - to[0], from[1] - to[1]];
      if (Math.hypot(x, y) < LEAST_GLIDE) continue;
      node.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration, easing: "ease-out" });
    }
  }

  /** @param {number} number */
  element(number) {
    if (!this.templates[number]) {
      const markup = `<svg xmlns="${SVG}">${this.data.elements[number]}</svg>`;
      const parsed = new DOMParser().parseFromString(markup, "image/svg+xml").documentElement.firstElementChild;
      this.templates[number] = document.importNode(/** @type {Element} */ (parsed), true);
    }
    return this.templates[number].cloneNode(true);
  }
}

if (globalThis.customElements && !customElements.get("lessons-player")) {
  document.head.append(Object.assign(document.createElement("style"), { textContent: THEME }));
  customElements.define("lessons-player", LessonsPlayer);
}
