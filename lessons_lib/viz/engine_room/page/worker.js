// The engine, in a worker: Python (Pyodide) schedules, model.js computes, a step at a time, as the page asks.
import { xorData } from "./data.js";
import { loadModel } from "./model.js";
import { tokenizer } from "./tokenizer.js";

const file = async (name) => {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name} is missing (${response.status})`);
  return response.arrayBuffer();
};
let python, model, words, room, settings, ids, prompts;

const gunzipped = async (packed) =>
  new Uint8Array(
    await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer(),
  );

/** Python's memory after its start (snapshot.mjs), if the page has it: else Python starts here, which takes longer. */
async function started() {
  const wasm = file("pyodide/pyodide.asm.wasm"),
    packed = await file("python.bin").catch(() => null);
  if (!packed) return null;
  const [memory, code] = [await gunzipped(packed), await wasm],
    usual = self.fetch;
  xorData(memory, new Uint8Array(code));
  self.fetch = (address, ...rest) =>
    // Pyodide asks for it once more
    String(address).endsWith("pyodide.asm.wasm")
      ? Promise.resolve(new Response(code, { headers: { "Content-Type": "application/wasm" } }))
      : usual(address, ...rest);
  return memory;
}

/** The weights are stored compressed, first all low bytes of the bf16 numbers, then all high ones, which is smaller. */
async function unpacked(packed) {
  const halves = await gunzipped(packed),
    whole = new Uint8Array(halves.length);
  const begin = 8 + Number(new DataView(halves.buffer).getBigUint64(0, true)),
    count = (halves.length - begin) / 2;
  whole.set(halves.subarray(0, begin));
  for (let i = 0; i < count; i++) {
    whole[begin + 2 * i] = halves[begin + i];
    whole[begin + 2 * i + 1] = halves[begin + count + i];
  }
  return whole.buffer;
}

async function start({ kernels = true, texts }) {
  const modelReady = (async () => {
    const [packed, json, code] = await Promise.all([
      file("weights.bin"),
      file("tokenizer.json"),
      kernels ? file("kernels.wasm") : null,
    ]);
    model = await loadModel(await unpacked(packed), code);
    words = tokenizer(JSON.parse(new TextDecoder().decode(json)));
    prompts = Object.fromEntries(Object.entries(texts).map(([kind, all]) => [kind, all.map(words.encode)]));
  })();
  const zip = file("course.zip"),
    memory = started(),
    { loadPyodide } = await import("./pyodide/pyodide.mjs");
  const wish = { indexURL: new URL("pyodide/", import.meta.url).href, env: { HOME: "/home/pyodide" } };
  python = await loadPyodide(await memory.then((bytes) => (bytes ? { ...wish, _loadSnapshot: bytes } : wish)));
  python.unpackArchive(await zip, "zip", { extractDir: "/course" });
  python.runPython("import sys, json; sys.path.insert(0, '/course'); from lessons_lib.viz.engine_room import room");
  await modelReady;
  return { fast: model.fast };
}

/** A Room of Python's and null, or null and what is wrong. */
function made(wanted) {
  python.globals.set("wish", JSON.stringify([wanted, prompts]));
  const answer = python.runPython(`
try:
    made, problem = room.Room(*json.loads(wish)), None
except Exception as error:
    made, problem = None, json.dumps(room.told(error))
problem`);
  return [python.globals.get("made"), answer && JSON.parse(answer)];
}
/** A new run. `wanted.sent`: [[step, text, most new tokens]], the reader's own requests. */
function reset(wanted) {
  settings = wanted;
  room?.destroy();
  const [fresh, error] = made(wanted);
  [room, ids] = [fresh, {}];
  if (error) return { error };
  for (const [step, text, most] of wanted.sent ?? []) room.sent.append(python.toPy([step, words.encode(text), most]));
}
/** For each arrival rate, the 95th percentile of the time to first token, without the model: all answers have full length. */
function knee(wanted, rates, ms = 12_000) {
  return rates.map((rate) => {
    const [room] = made({ ...wanted, rate }),
      arrived = new Map(),
      waits = [];
    let now = 0;
    while (now < ms) {
      const { rows } = JSON.parse(room.plan()),
        frame = JSON.parse(room.done(rows.map(() => 1)));
      now = frame.ms;
      for (const [id, , , , at] of frame.arrived) arrived.set(id, at);
      for (const [id] of frame.new)
        if (arrived.has(id)) (waits.push(now - arrived.get(id)), arrived.delete(id));
    }
    room.destroy();
    for (const at of arrived.values()) waits.push(now - at); // those that still wait
    waits.sort((a, b) => a - b);
    return [rate, waits[Math.floor(0.95 * (waits.length - 1))] ?? 0];
  });
}
const send = (text, most) => room.sent.append(python.toPy([room.steps, words.encode(text), most]));

/** The text that each new token adds; one that ends within a character adds nothing, and the next one adds it all. */
function pieces(before, added) {
  const whole = (all) => words.decode(all).replace(/\ufffd+$/, "");
  let [all, length] = [[...before], whole(before).length];
  return added.map((id) => {
    all.push(id);
    const text = whole(all),
      piece = text.slice(length);
    length = text.length;
    return piece;
  });
}

function step() {
  const t0 = performance.now(),
    plan = JSON.parse(room.plan());
  if (plan.error) return plan;
  const t1 = performance.now();
  for (const [kind, from, to] of plan.copies) model.copyBlock(kind, from, to, settings.size);
  const next = plan.rows.length ? model.forward(plan.rows, settings.size, settings.temperature) : [];
  const t2 = performance.now(),
    frame = JSON.parse(room.done(next));
  if (frame.error) return frame;
  const t3 = performance.now();
  for (const arrived of frame.arrived) {
    ids[arrived[0]] = arrived[1];
    arrived[1] = pieces([], arrived[1]);
  }
  for (const added of frame.new) {
    const [name, id] = added,
      before = ids[name];
    added[1] = pieces(before.slice(-8), [id])[0];
    before.push(id);
  }
  return { frame, took: { schedule: t1 - t0, model: t2 - t1, update: t3 - t2 } };
}

function steps(count) {
  let last;
  for (let i = 0; i < count; i++) {
    last = step();
    if (last.error) break;
  }
  return last;
}

const does = {
  start,
  reset,
  send,
  step,
  steps,
  knee,
  texts: (given, most, temperature) => {
    // the answers to texts, in one batch; the seeds are 0, 1, ... For tests
    const all = given.map((text) => words.encode(text)),
      answers = given.map(() => []);
    const rows = all.map((ids, seed) => ({
      ids,
      start: 0,
      seed,
      position: 0,
      blocks: [...Array(24).keys()].map((i) => 24 * seed + i),
    }));
    for (const row of rows)
      row.ids.slice(0, -1).forEach((id, start) => model.forward([{ ...row, ids: [id], start }], 4, 0));
    for (let position = 0; position < most; position++) {
      const batch = rows.map((row, i) => ({
        ...row,
        ids: [[...all[i], ...answers[i]].at(-1)],
        start: all[i].length + position - 1,
        position,
      }));
      model.forward(batch, 4, temperature).forEach((id, i) => answers[i].push(id));
    }
    return answers.map((ids) => (ids.includes(0) ? ids.slice(0, ids.indexOf(0) + 1) : ids));
  },
};
addEventListener("message", async ({ data: [call, name, ...rest] }) => {
  try {
    postMessage([call, await does[name](...rest)]);
  } catch (error) {
    postMessage([call, null, String(error?.message ?? error)]);
  }
});
