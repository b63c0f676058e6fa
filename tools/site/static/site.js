// Mends what the theme and myst-nb do to readers without a mouse or with a screen reader, and to those who print.

document.addEventListener("DOMContentLoaded", () => {
  // Their label hides the words that are shown: "Show the solution of 03.1", "Search Ctrl + K".
  for (const control of document.querySelectorAll("summary[aria-label], .search-button-field[aria-label]"))
    control.removeAttribute("aria-label");

  // What scrolls must be reachable with the Tab key.
  const reach = () => {
    for (const box of document.querySelectorAll(".cell_output .text_html, .cell_output .text_plain, pre"))
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  };
  reach();
  addEventListener("resize", reach);
});

// A page is printed in light colors, and the pictures in the players as wide as the paper.
addEventListener("beforeprint", () => {
  const root = document.documentElement, theme = root.dataset.theme;
  root.dataset.theme = "light";
  addEventListener("afterprint", () => { root.dataset.theme = theme; }, { once: true });
  for (const player of document.querySelectorAll("lessons-player")) {
    if (!player.shadowRoot || player.shadowRoot.querySelector("[data-print]")) continue;
    const style = document.createElement("style");
    style.dataset.print = "";
    style.textContent =
      "@media print { svg { min-width: 0; } .controls { display: none; } .sheet { overflow: visible; animation: none; } }";
    player.shadowRoot.append(style);
  }
});
