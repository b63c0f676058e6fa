// Python for the page: Pyodide, with lessons_lib unpacked into its file system.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const start = async () => {
  const python = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  const files = async (name) => (await fetch(new URL(name, import.meta.url))).arrayBuffer();
  python.FS.mkdirTree("/course");
  python.unpackArchive(await files("lessons_lib.zip"), "zip", { extractDir: "/course" });
  python.runPython(new TextDecoder().decode(await files("answers.py")));
  return python;
};
const started = start();

addEventListener("message", async ({ data }) => {
  const python = await started;
  postMessage(python.globals.get("answer")(JSON.stringify(data)));
});
