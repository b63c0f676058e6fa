// The player's functions that need no page. `node --test tests/viz/player.test.mjs`; test_player_functions.py runs it.
// PLAYER is a copy of player.js as .mjs, and RECORDING a file with what Python has recorded and what it should become.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

const { common, exchanges, expanded, isLit, namesIn, stepMs, unpacked } = await import(process.env.PLAYER);

test("what Python has packed is what it was", async () => {
  const { packed, recording } = JSON.parse(await readFile(process.env.RECORDING, "utf8"));
  assert.deepEqual(await unpacked(packed), recording);
  assert.deepEqual(await unpacked(`\n  ${packed}\n`), recording);
});

test("the changes give back the elements of every picture", async () => {
  const { recording, elements, pictures } = JSON.parse(await readFile(process.env.RECORDING, "utf8"));
  const drawn = expanded(recording.changes).map((numbers) => numbers.map((number) => elements[number]));
  assert.deepEqual(drawn, pictures);
});

test("no picture, and one that doesn't change", () => {
  assert.deepEqual(expanded([]), []);
  assert.deepEqual(expanded([[[0, 0, 7, 8]], []]), [[7, 8], [7, 8]]);
});

test("a list is exchanged between its common ends only", () => {
  for (const [a, b, wanted] of [
    [[], [], [0, 0]],
    [[], [1], [0, 0]],
    [[1, 2, 3], [1, 2, 3], [3, 0]],
    [[1, 2, 3], [1, 9, 3], [1, 1]],
    [[1, 1], [1], [1, 0]], // an element counts once, though it is at both ends
    [[1], [1, 1, 1], [1, 0]],
    [[4, 5], [6, 7], [0, 0]],
  ]) {
    assert.deepEqual(common(a, b), wanted, JSON.stringify([a, b]));
  }
});

test("exchanging makes one list of the other", () => {
  let seed = 1;
  const draw = (below) => (seed = (seed * 16807) % 2147483647) % below;
  for (let trial = 0; trial < 5000; trial++) {
    const [a, b] = [0, 1].map(() => Array.from({ length: draw(8) }, () => draw(4)));
    const [first, last] = common(a, b);
    const middle = a.slice(first, a.length - last);
    const { gone, come } = exchanges(middle, b.slice(first, b.length - last));
    const made = [];
    for (let place = 0; place <= middle.length; place++) {
      made.push(...come.filter(([, before]) => before === place).map(([number]) => number));
      if (place < middle.length && !gone.includes(place)) made.push(middle[place]);
    }
    assert.deepEqual([...a.slice(0, first), ...made, ...a.slice(a.length - last)], b, JSON.stringify([a, b]));
  }
});

test("what is in both lists in one order stays", () => {
  assert.deepEqual(exchanges([1, 2, 3, 4], [1, 9, 3, 4]), { gone: [1], come: [[9, 2]] });
  assert.deepEqual(exchanges([1, 2, 3], []), { gone: [0, 1, 2], come: [] });
  assert.deepEqual(exchanges([], [5, 6]), { gone: [], come: [[5, 0], [6, 0]] });
});

test("a run takes twelve seconds, but no step is too short or too long to see", () => {
  assert.equal(stepMs(60), 200);
  assert.equal(stepMs(10_000), 50);
  for (const few of [0, 1, 2]) assert.equal(stepMs(few), 800);
});

test("what is lit: the name itself, and all that is part of it", () => {
  for (const [links, wanted, lit] of [
    ["A", "A", true],
    ["A/13", "A", true],
    ["A/13 B/13", "B", true],
    ["A/13", "A/1", false], // block 13 isn't a part of block 1
    ["A/13", "A/13", true],
    ["A", "A/13", false],
    ["AB/1", "A", false],
  ]) {
    assert.equal(isLit(links, wanted), lit, `${links} for ${wanted}`);
  }
});

test("each name can be followed once", () => {
  assert.deepEqual(namesIn(['<rect data-link="B/2" x="1"/>', '<g data-link="A/1 B/1"><rect/></g>', "<rect/>"]), ["A", "B"]);
  assert.deepEqual(namesIn([]), []);
});
