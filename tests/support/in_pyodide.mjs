// Runs a file of Python in Pyodide, with the course's folder as /course: node in_pyodide.mjs PYODIDE COURSE FILE
import fs from "node:fs";
import path from "node:path";

const [pyodide, course, file] = process.argv.slice(2);
const { loadPyodide } = await import(path.join(pyodide, "pyodide.mjs"));
const python = await loadPyodide();
python.FS.mkdirTree("/course");
python.FS.mount(python.FS.filesystems.NODEFS, { root: course }, "/course");
console.log(python.runPython(`import sys; sys.path.insert(0, "/course")\n${fs.readFileSync(file, "utf-8")}`));
