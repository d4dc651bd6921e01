// Applies the chosen theme, or the system's, before the first paint. `data-theme` is the one in force,
// `data-choice` the choice.
const dark = matchMedia("(prefers-color-scheme: dark)");

function applyTheme() {
  const stored = localStorage.getItem("weir-theme");
  const choice = stored === "light" || stored === "dark" ? stored : "system";
  const { dataset } = document.documentElement;
  dataset.choice = choice;
  dataset.theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice;
  window.dispatchEvent(new Event("weir-theme"));
}

applyTheme();
dark.addEventListener("change", applyTheme);
window.addEventListener("weir-choice", applyTheme);
