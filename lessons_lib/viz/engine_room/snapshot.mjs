// node snapshot.mjs PYODIDE COURSE.ZIP OUT: Python's memory once it has started and imported the engine, compressed. From
// it, a browser starts Python in a tenth of the time.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [pyodide, course, out] = process.argv.slice(2),
  read = (file) => new Uint8Array(readFileSync(file));
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`).href);
const code = readFileSync(new URL("page/data.js", import.meta.url), "utf8");
const { xorData } = await import(`data:text/javascript,${encodeURIComponent(code)}`);
const python = await loadPyodide({ indexURL: `${pyodide}/`, _makeSnapshot: true });
python.unpackArchive(read(course), "zip", { extractDir: "/course" });
python.runPython(`
import sys, json, gc, linecache, re, zipimport
sys.path.insert(0, '/course')
from lessons_lib.viz.engine_room import room
# The page's zip of modules is another one.
zipimport._zip_directory_cache.clear(), sys.path_importer_cache.clear(), linecache.cache.clear(), re.purge()
gc.collect()
held = None
for size in (1 << 20, 1 << 17, 1 << 15, 1 << 13, 1 << 12, 1 << 11, 1 << 10, 600):  # zeros in what is free
    held = [bytearray(size) for _ in range((3 << 20) // size)]
    held = None  # before the next: the memory must not grow, for it is loaded into one that has not
del held, size
`);
const memory = python.makeMemorySnapshot();
xorData(memory, read(`${pyodide}/pyodide.asm.wasm`));
writeFileSync(out, gzipSync(memory, { level: 9 }));
process.exit(0);
