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

  // In a narrow window a picture scrolls, so that its text can be read; a button shows all of it, smaller.
  for (const picture of document.querySelectorAll("lessons-player, div:has(> img.lessons-picture)")) {
    if (picture.parentElement.closest("lessons-player")) continue;
    const button = document.createElement("button");
    button.className = "lessons-whole";
    button.textContent = "whole picture";
    button.ariaPressed = "false";
    button.onclick = () => {
      const isWhole = picture.classList.toggle("lessons-is-whole");
      button.ariaPressed = String(isWhole);
      addRules(picture);
    };
    picture.after(button);
  }
});

// Rules for players, which the page's own don't reach.
const RULES = new CSSStyleSheet();
RULES.replaceSync(`:host(.lessons-is-whole) { svg { min-width: 0; } .sheet > div { height: auto !important; } }
  @media print { svg { min-width: 0; } .controls { display: none; } .sheet { overflow: visible; animation: none; } }`);
function addRules(player) {
  const sheets = player.shadowRoot?.adoptedStyleSheets;
  if (sheets && !sheets.includes(RULES)) sheets.push(RULES);
}

// A page is printed in light colors, and the pictures in the players as wide as the paper.
addEventListener("beforeprint", () => {
  const root = document.documentElement,
    theme = root.dataset.theme;
  root.dataset.theme = "light";
  addEventListener(
    "afterprint",
    () => {
      root.dataset.theme = theme;
    },
    { once: true },
  );
  document.querySelectorAll("lessons-player").forEach(addRules);
});
