// Before the first paint, so that a chosen theme does not flash the other one.
try {
  const theme = JSON.parse(localStorage.getItem("pegboard.settings"))?.theme;
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is closed or damaged: the system's theme it is.
}
