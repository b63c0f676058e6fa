// A picture that Python draws, with ends that can be dragged: each has data-end (what it moves), data-axis (x or y),
// data-at (its place on the axis), data-cell (pixels of a token) and data-count (its tokens now).

/**
 * @typedef {object} End
 * @property {string} name
 * @property {number} at
 * @property {number} count
 */

/**
 * The ends at the place nearest to `at`. Sequences without tokens end where the one before them ends.
 * @param {End[]} ends
 * @param {number} at
 * @returns {End[]}
 */
export function nearest(ends, at) {
  const least = Math.min(...ends.map((end) => Math.abs(end.at - at)));
  return ends.filter((end) => Math.abs(end.at - at) < least + 0.5);
}

/**
 * Which of the ends at one place follows the pointer: to the right the last of them, and to the left the last that has
 * a token to lose.
 * @param {End[]} ends
 * @param {number} moved tokens, not 0
 * @returns {End | undefined}
 */
export function following(ends, moved) {
  return ends.filter((end) => moved > 0 || end.count > 0).at(-1);
}

/** @param {{model: any, el: HTMLElement}} widget */
function render({ model, el }) {
  /** @type {{id: number, x: boolean, from: number, token: number, ends: End[], end?: End, told?: number} | null} */
  let held = null;
  const show = () => {
    el.innerHTML = model.get("value");
  };

  /** @param {PointerEvent} event */
  const take = (event) => {
    const handle = event.target instanceof SVGElement && event.target.closest("[data-end]");
    if (!(handle instanceof SVGGraphicsElement) || event.button) return;
    const scale = handle.getScreenCTM();
    if (!scale) return;
    const { axis, cell } = handle.dataset;
    const ends = [...el.querySelectorAll(`[data-end][data-axis="${axis}"]`)].map((other) => {
      const { end, at, count } = /** @type {SVGElement} */ (other).dataset;
      return { name: String(end), at: Number(at), count: Number(count) };
    });
    const x = axis === "x";
    const at = x ? (event.clientX - scale.e) / scale.a : (event.clientY - scale.f) / scale.d;
    const token = Number(cell) * (x ? scale.a : scale.d);
    held = { id: event.pointerId, x, from: x ? event.clientX : event.clientY, token, ends: nearest(ends, at) };
    el.setPointerCapture(event.pointerId); // the handle itself is gone as soon as the picture is drawn again
    event.preventDefault();
  };

  /** @param {PointerEvent} event */
  const drag = (event) => {
    if (!held || event.pointerId !== held.id) return;
    const moved = Math.round(((held.x ? event.clientX : event.clientY) - held.from) / held.token);
    if (moved) held.end ??= following(held.ends, moved);
    if (!held.end) return;
    const count = Math.max(0, held.end.count + moved);
    if (count !== held.told) model.send({ end: held.end.name, count });
    held.told = count;
  };

  /** @param {PointerEvent} event */
  const release = (event) => {
    if (held?.id === event.pointerId) held = null;
  };

  /** @param {TouchEvent} event */
  const keepStill = (event) => {
    if (event.target instanceof Element && event.target.closest("[data-end]")) event.preventDefault(); // no scrolling
  };

  show();
  model.on("change:value", show);
  el.addEventListener("touchstart", keepStill, { passive: false });
  el.addEventListener("pointerdown", take);
  el.addEventListener("pointermove", drag);
  el.addEventListener("pointerup", release);
  el.addEventListener("pointercancel", release);
  return () => model.off("change:value", show);
}

export default { render };
