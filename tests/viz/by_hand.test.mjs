// The rules of the pool and the mask that are driven by hand; test_by_hand.py runs it, with what Python says about each.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

const { Pool } = await import(process.env.POOL);
const { endsOf, following, may, moved, nearest, readCell, readRow, rowOf } = await import(process.env.MASK);
const { masks, pools } = JSON.parse(await readFile(process.env.CASES, "utf8"));

test("a pool and its tables are Python's after every call, and so are the words", () => {
  for (const { blocks, size, calls } of pools) {
    const pool = new Pool(blocks, size);
    for (const { name, tokens, told, queue, tables, sums } of calls) {
      assert.ok((tokens ? pool.append(name, tokens) : pool.free(name))[0].startsWith(told), told);
      assert.deepEqual(pool.queue, queue);
      assert.deepEqual(Object.fromEntries(pool.tables), tables);
      assert.equal(pool.sums().split(" allocated")[0], sums);
      const stored = Object.values(tables).flatMap((table) => table.blocks.map((_, place) => pool.stored(table, place)));
      assert.equal(stored.reduce((a, b) => a + b, 0), Object.values(tables).reduce((a, table) => a + table.tokens, 0));
    }
  }
});

test("a mask is Python's, and so are the words for its rows and cells", () => {
  for (const { lengths, cached, padding, on, mask, rows, cells } of masks) {
    const { queries, keys } = rowOf(lengths, cached, padding), names = ["A", "B", "C"];
    assert.deepEqual(queries.map((query) => keys.map((key) => may(query, key, on))), mask);
    assert.deepEqual(queries.map((query) => readRow(query, keys, on, names)), rows);
    assert.deepEqual(queries.map((query) => keys.map((key) => readCell(query, key, on, names))), cells);
  }
});

test("the ends nearest to the pointer are taken; to the right goes the last, to the left the last with tokens", () => {
  const ends = endsOf([], [4, 0, 2], 0), names = (at) => nearest(ends, at).map(({ name }) => name);
  assert.deepEqual([names(4.2), names(5.4), names(40)], [["new 0", "new 1"], ["new 2", "padding 0"], ["new 2", "padding 0"]]);
  assert.equal(following(nearest(ends, 4), 2).name, "new 1");
  assert.equal(following(nearest(ends, 4), -1).name, "new 0");
  assert.equal(following([{ name: "cached 0", at: 0, count: 0 }], -3), undefined);
});

test("arrow keys stay in the grid", () => {
  const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "x"];
  assert.deepEqual(keys.map((key) => moved(key, 5, 4, 10)), [4, 6, 1, 9, 0, 9, -1]);
  assert.deepEqual(keys.map((key) => moved(key, 9, 4, 10)), [8, 9, 5, 9, 0, 9, -1]);
});
