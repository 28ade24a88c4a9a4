// Runs before the first paint, so that a chosen theme does not flash. Also tells the style sheet that scripts run.
(() => {
  const root = document.documentElement;
  root.dataset.scripted = "";
  try {
    const chosen = localStorage.getItem("fencewatch.theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // storage is refused: the system's theme stays
  }
})();
