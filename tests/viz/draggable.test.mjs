// The functions of draggable.js that need no page; test_player_functions.py runs it. DRAGGABLE is a copy as .mjs.

import assert from "node:assert/strict";
import { test } from "node:test";

const { following, nearest } = await import(process.env.DRAGGABLE);

const end = (name, at, count) => ({ name, at, count });

test("all ends at the nearest place are taken", () => {
  const ends = [end("new 0", 136, 4), end("new 1", 136, 0), end("new 2", 204, 2), end("padding", 204, 0)];
  assert.deepEqual(nearest(ends, 141).map(({ name }) => name), ["new 0", "new 1"]);
  assert.deepEqual(nearest(ends, 171).map(({ name }) => name), ["new 2", "padding"]);
  assert.deepEqual(nearest(ends, 900).map(({ name }) => name), ["new 2", "padding"]);
});

test("to the right the last end goes, to the left the last one with tokens", () => {
  const ends = [end("new 0", 136, 4), end("new 1", 136, 0)];
  assert.equal(following(ends, 2).name, "new 1");
  assert.equal(following(ends, -1).name, "new 0");
  assert.equal(following([end("cached 0", 0, 0)], -3), undefined);
});
