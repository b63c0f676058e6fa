// Exercises in the page: what the learner writes is kept in this browser and checked by Python in a worker.

const SECONDS = 25; // for one answer
const LOADING = 120; // and for the first one, which loads Python
let worker = null;
let isLoaded = false;

/** Ask the worker, and end it if it doesn't answer: Python in a page can't be interrupted. */
function ask(question) {
  worker ??= new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  const asked = worker;
  const seconds = isLoaded ? SECONDS : LOADING;
  return new Promise((answer) => {
    const ended = (html) => {
      asked.terminate();
      worker = null;
      isLoaded = false;
      answer(html);
    };
    const clock = setTimeout(() => ended(`Stopped after ${seconds} seconds. Is there an infinite loop?`), 1000 * seconds);
    asked.onmessage = ({ data }) => {
      isLoaded = true;
      clearTimeout(clock);
      answer(data);
    };
    asked.onerror = (event) => {
      clearTimeout(clock);
      ended(`Python could not be started (${event.message ?? "its files did not load"}).`);
    };
    asked.postMessage(question);
  });
}

for (const box of document.querySelectorAll(".lessons-exercise")) {
  const code = box.querySelector("textarea");
  const says = box.querySelector(".lessons-says");
  const id = box.dataset.exercise;
  const key = `lessons.${id}`;
  const stub = code.value;
  let hints = 0;
  code.value = localStorage.getItem(key) ?? stub;
  code.addEventListener("input", () => localStorage.setItem(key, code.value));

  // Tab indents, and Escape gives it back, so that the keyboard can leave the text.
  let indents = true;
  code.addEventListener("keydown", (event) => {
    if (event.key === "Escape") indents = false;
    if (event.key !== "Tab" || event.shiftKey || !indents) return;
    event.preventDefault();
    document.execCommand("insertText", false, "    ");
  });
  code.addEventListener("blur", () => (indents = true));

  const does = {
    check: () => ask({ does: "check", id, code: code.value }),
    hint: () => ask({ does: "hint", id, count: ++hints }),
    solution: () => ask({ does: "solution", id }),
    reset: async () => {
      localStorage.removeItem(key);
      code.value = stub;
      return "";
    },
  };
  for (const button of box.querySelectorAll("button"))
    button.addEventListener("click", async () => {
      for (const other of document.querySelectorAll(".lessons-exercise button")) other.disabled = true;
      says.textContent = isLoaded || button.dataset.does === "reset" ? "…" : "Python is loading…";
      says.innerHTML = await does[button.dataset.does]();
      for (const other of document.querySelectorAll(".lessons-exercise button")) other.disabled = false;
    });
}
