// What tests of the engine room run in its page.
async function framesOf([settings, steps]) {
  await room.ask("reset", { ...settings, sent: [] });
  const frames = [];
  for (let i = 0; i < steps; i++) frames.push((await room.ask("step")).frame);
  return frames;
}
/** `labels`: [left, top, right] of each text in the block pool. `outside`: what is drawn right of its canvas. */
function watchDrawing() {
  for (const name of ["fillText", "fillRect"]) {
    const draw = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (...what) {
      const isText = name === "fillText",
        [x, y, width] = isText ? [what[1], what[2], this.measureText(what[0]).width] : what;
      if (isText && this.canvas.closest("#pool")) labels.push([x, y, x + width]);
      if (x + width > this.canvas.clientWidth + 0.5) outside.push([this.canvas.parentNode.id, ...what]);
      draw.apply(this, what);
    };
  }
}
var [labels, outside] = [[], []];
/** What is drawn outside at the last of many steps of a busy run. */
async function drawnOutside(settings) {
  const { draw } = await import("./engine_room/pictures.js"),
    { newRun, take } = await import("./engine_room/figures.js"),
    run = newRun({ ...settings, sent: [] });
  for (const frame of await framesOf([settings, 185])) take(run, frame);
  outside = [];
  draw({ ...run, index: run.frames.length - 1, picked: null, follow: "", isNew: false });
  return outside;
}
const textsOf = () => [...room.run.requests.values()].map((each) => each.words.join(""));
const shownTextsAreOfThisRun = () =>
  [...document.querySelectorAll(".text")].every((each) =>
    room.run.requests.get(each.dataset.id).words.join("").startsWith(each.querySelector("p").textContent),
  );
const numbersOfTable = () =>
  [...document.querySelectorAll("#question tr:has(b)")].map((row) =>
    [...row.querySelectorAll("td")].map((cell) => cell.textContent.match(/\d+/g).map(Number)),
  );
