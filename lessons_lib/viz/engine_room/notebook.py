"""A cell that shows the engine room: from the built site if there is one, else a copy of the page made for it."""

import functools
import http.server
import tempfile
import threading
from pathlib import Path

from IPython.display import HTML

from lessons_lib.viz.engine_room.build import INSTALL, ROOT, write_page


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files, with the types that browsers insist on; some machines have others registered."""

    def guess_type(self, path: str) -> str:
        known = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm"}
        return known.get(Path(path).suffix) or super().guess_type(path)

    def log_message(self, *_: object) -> None:
        pass


@functools.cache
def serve(folder: Path) -> str:
    """The address of a folder, served to this machine until Python ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@functools.cache
def page_folder() -> tuple[Path, bool]:
    """Where the page is, and whether its engine is live."""
    site = ROOT / "build" / "site"
    if (site / "engine_room" / "pyodide").is_dir():
        return site, True
    folder = Path(tempfile.mkdtemp(prefix="engine-room-"))
    return folder, write_page(folder)


def engine_room(height: int = 920) -> HTML:
    """Show the engine room in the notebook. The browser must run on the same machine as Python."""
    folder, is_live = page_folder()
    address = f"{serve(folder)}/engine_room.html"
    words = f"<a href='{address}' target='_blank'>Open it in a tab of its own</a>."
    if not is_live:
        words += f" It plays a recorded run; for the live engine, run <code>{' '.join(INSTALL)}</code> and restart."
    frame = f"<iframe src='{address}' title='Engine room' style='width:100%;height:{height}px;border:0'></iframe>"
    return HTML(f"<p>{words}</p>{frame}")
