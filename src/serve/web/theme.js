// The stored choice of theme, before the first paint. Without one the browser's own preference holds.
'use strict';
try {
  const theme = localStorage.getItem('volley.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing for this page: its preference holds.
}
