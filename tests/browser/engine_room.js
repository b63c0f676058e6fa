// What tests of the engine room run in its page.
async function framesOf([settings, steps]) {
  await room.ask("reset", { ...settings, sent: [] });
  const frames = [];
  for (let i = 0; i < steps; i++) frames.push((await room.ask("step")).frame);
  return frames;
}
/** `labels`: [left, top, right] of each text in the canvases of a section. */
function watchLabels(section) {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.canvas.closest(section)) labels.push([x, y, x + this.measureText(text).width]);
    draw.call(this, text, x, y);
  };
}
var labels = [];
const textsOf = () => [...room.run.requests.values()].map((each) => each.words.join(""));
const shownTextsAreOfThisRun = () =>
  [...document.querySelectorAll(".text")].every((each) =>
    room.run.requests.get(each.dataset.id).words.join("").startsWith(each.querySelector("p").textContent),
  );
const numbersOfTable = () =>
  [...document.querySelectorAll("#question tr:has(b)")].map((row) =>
    [...row.querySelectorAll("td")].map((cell) => cell.textContent.match(/\d+/g).map(Number)),
  );
